"""The data of the API: its tables, all of its SQL, and the rules next to it."""
