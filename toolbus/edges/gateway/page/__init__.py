"""The web page of the gateway: what is going on in a namespace, live, and a form to try each tool."""
