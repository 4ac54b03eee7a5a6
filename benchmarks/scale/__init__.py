"""The scale of toolbus on paper: costs that are measured here, and a simulation of large deployments that they feed."""
