type Tab = { query: string; variables?: string };

const variables = (values: object) => JSON.stringify(values, null, 2);

/** The operations that GraphiQL opens with, one in each tab. They show the main tasks of the API. */
export const EXAMPLES: Tab[] = [
  {
    query: `# Who am I, and what may I do?
query Viewer {
  viewer {
    identity
    name
    tenantId
    actions
  }
}
`,
  },
  {
    query: `# The sites that my tenant sees, a page at a time.
query Sites($after: String) {
  sites(first: 20, after: $after, orderBy: { field: NAME }) {
    totalCount
    pageInfo { hasNextPage endCursor }
    nodes { id name kind region labels { key value } revision }
  }
}
`,
    variables: variables({ after: null }),
  },
  {
    query: `# Mint a site token. Its bearer is in this answer and nowhere else.
mutation CreateSiteToken($input: CreateSiteTokenInput!) {
  createSiteToken(input: $input) {
    token
    siteToken { id state maxUses expiresAt }
  }
}
`,
    variables: variables({
      input: { tenantId: "acme", siteId: "site_", ttlSeconds: 3600, maxUses: 2, idempotencyKey: "first-rack" },
    }),
  },
  {
    query: `# Revoke it. No redemption that starts after the answer can succeed.
mutation RevokeSiteToken($input: RevokeSiteTokenInput!) {
  revokeSiteToken(input: $input) {
    siteToken { id state revokedAt }
  }
}
`,
    variables: variables({ input: { tenantId: "acme", siteId: "site_", tokenId: "jt_" } }),
  },
  {
    query: `# Put a secret. Give the value as a variable; nothing reads it back.
mutation PutSecret($input: PutSecretInput!) {
  putSecret(input: $input) {
    reference
    version
  }
}
`,
    variables: variables({ input: { tenantId: "acme", name: "bmc/rack-1", value: "" } }),
  },
  {
    query: `# Tokens, newest first.
query SiteTokens {
  siteTokens(first: 20, filter: { states: [ACTIVE] }) {
    totalCount
    nodes { id state uses maxUses expiresAt createdBy site { name } }
  }
}
`,
  },
  {
    query: `# Who did or tried what.
query AuditTrail {
  auditEvents(first: 20) {
    nodes { time actor operation action resource decision outcome data }
  }
}
`,
  },
  {
    query: `# What happens, as it happens.
subscription SiteEvents {
  siteEvents {
    position
    time
    type
    subject
    data
  }
}
`,
  },
];
