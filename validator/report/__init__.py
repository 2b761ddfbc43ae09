"""A report as text and as JSON. Nothing here decides anything."""
