"""Who may do what: tenants, identities, roles, and the authorization projection."""
