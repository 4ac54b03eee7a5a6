"""Commands and views for people who run toolbus."""
