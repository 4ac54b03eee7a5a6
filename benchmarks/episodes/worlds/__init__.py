"""The stateful services that episodes use, as plain classes whose public methods are tools."""
