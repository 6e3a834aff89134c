"""Access control: tenants, identities, roles, and the authorization projection."""
