"""The fleet: sites, site tokens, site agents and their keys, and boot leases."""
