// The GraphQL documents that the program runs.
import { graphql } from "./generated/gql.js";

export const Viewer = graphql(`
  query Viewer {
    viewer { name tenantId actions }
  }
`);

export const Sites = graphql(`
  query Sites($after: String) {
    sites(first: 2, after: $after) {
      nodes { id name kind }
      pageInfo { hasNextPage endCursor }
    }
  }
`);

export const Mint = graphql(`
  mutation Mint($input: CreateSiteTokenInput!) {
    createSiteToken(input: $input) { token siteToken { id state expiresAt } }
  }
`);

export const Revoke = graphql(`
  mutation Revoke($input: RevokeSiteTokenInput!) {
    revokeSiteToken(input: $input) { siteToken { id state revokedAt } }
  }
`);

export const Put = graphql(`
  mutation Put($input: PutSecretInput!) {
    putSecret(input: $input) { reference version }
  }
`);
