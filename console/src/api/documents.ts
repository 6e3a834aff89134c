// All GraphQL documents of the console. The generator types them against the exported schema.
import { graphql } from "../generated";

export const VIEWER = graphql(`
  query Viewer {
    viewer {
      identity
      name
      tenantId
      actions
      fleetActions
    }
  }
`);

export const SITES = graphql(`
  query Sites($tenantId: ID!, $first: Int!, $after: String, $filter: SiteFilter, $orderBy: SiteOrder) {
    sites(tenantId: $tenantId, first: $first, after: $after, filter: $filter, orderBy: $orderBy) {
      totalCount
      pageInfo {
        hasNextPage
        endCursor
      }
      nodes {
        id
        tenantId
        kind
        name
        region
        dedicatedTo
        revision
        createdAt
        deletedAt
        labels {
          key
          value
        }
      }
    }
  }
`);

export const SITE = graphql(`
  query Site($tenantId: ID!, $id: ID!, $after: String) {
    site(tenantId: $tenantId, id: $id) {
      id
      tenantId
      kind
      name
      region
      dedicatedTo
      revision
      createdAt
      updatedAt
      deletedAt
      labels {
        key
        value
      }
      bootLease {
        epoch
        holderAgentId
        acquiredAt
        history(first: 8) {
          epoch
          agentId
          acquiredAt
          endedAt
          reason
        }
      }
      siteTokens(first: 20, after: $after) {
        totalCount
        pageInfo {
          hasNextPage
          endCursor
        }
        nodes {
          id
          siteId
          state
          uses
          maxUses
          allowedCidrs
          createdAt
          createdBy
          expiresAt
          revokedAt
          lastUsedAt
        }
      }
    }
  }
`);

export const CREATE_SITE = graphql(`
  mutation CreateSite($input: CreateSiteInput!) {
    createSite(input: $input) {
      site {
        id
      }
    }
  }
`);

export const UPDATE_SITE = graphql(`
  mutation UpdateSite($input: UpdateSiteInput!) {
    updateSite(input: $input) {
      site {
        id
        revision
      }
    }
  }
`);

export const DELETE_SITE = graphql(`
  mutation DeleteSite($input: DeleteSiteInput!) {
    deleteSite(input: $input) {
      site {
        id
        deletedAt
      }
    }
  }
`);

export const CREATE_SITE_TOKEN = graphql(`
  mutation CreateSiteToken($input: CreateSiteTokenInput!) {
    createSiteToken(input: $input) {
      token
      siteToken {
        id
        expiresAt
        maxUses
      }
    }
  }
`);

export const REVOKE_SITE_TOKEN = graphql(`
  mutation RevokeSiteToken($input: RevokeSiteTokenInput!) {
    revokeSiteToken(input: $input) {
      siteToken {
        id
        state
      }
    }
  }
`);

export const SECRETS = graphql(`
  query Secrets($tenantId: ID!, $scope: SecretScope, $after: String) {
    secrets(tenantId: $tenantId, scope: $scope, first: 20, after: $after) {
      totalCount
      pageInfo {
        hasNextPage
        endCursor
      }
      nodes {
        reference
        name
        scope
        version
        createdAt
        updatedAt
      }
    }
  }
`);

export const PUT_SECRET = graphql(`
  mutation PutSecret($input: PutSecretInput!) {
    putSecret(input: $input) {
      reference
      version
    }
  }
`);

export const AUDIT_EVENTS = graphql(`
  query AuditEvents($tenantId: ID!, $after: String, $filter: AuditFilter) {
    auditEvents(tenantId: $tenantId, first: 30, after: $after, filter: $filter) {
      totalCount
      pageInfo {
        hasNextPage
        endCursor
      }
      nodes {
        id
        time
        actor
        operation
        action
        resource
        decision
        outcome
        requestId
        data
      }
    }
  }
`);

export const SITE_EVENTS = graphql(`
  subscription SiteEvents($tenantId: ID!, $siteId: ID) {
    siteEvents(tenantId: $tenantId, siteId: $siteId) {
      position
      type
      siteId
    }
  }
`);

export const SITE_AGENTS = graphql(`
  query SiteAgents($tenantId: ID!, $siteId: ID!, $after: String) {
    siteAgents(tenantId: $tenantId, siteId: $siteId, first: 20, after: $after) {
      totalCount
      pageInfo {
        hasNextPage
        endCursor
      }
      nodes {
        id
        name
        address
        enrolledAt
        lastSeenAt
        revokedAt
      }
    }
  }
`);

export const AGENT_NAME = graphql(`
  query AgentName($tenantId: ID!, $id: ID!) {
    siteAgent(tenantId: $tenantId, id: $id) {
      id
      name
    }
  }
`);

export const TOKEN_AGENTS = graphql(`
  query TokenAgents($tenantId: ID!, $siteId: ID!, $tokenId: ID!) {
    siteAgents(tenantId: $tenantId, siteId: $siteId, first: 20, filter: { tokenId: $tokenId, revoked: false }) {
      totalCount
      nodes {
        id
        name
        address
      }
    }
  }
`);

export const REVOKE_SITE_AGENT = graphql(`
  mutation RevokeSiteAgent($input: RevokeSiteAgentInput!) {
    revokeSiteAgent(input: $input) {
      siteAgent {
        id
        revokedAt
      }
    }
  }
`);

export const SECRET_GRANTS = graphql(`
  query SecretGrants($tenantId: ID!, $siteId: ID!, $after: String) {
    secretGrants(tenantId: $tenantId, siteId: $siteId, first: 20, after: $after) {
      totalCount
      pageInfo {
        hasNextPage
        endCursor
      }
      nodes {
        reference
        name
        scope
        createdAt
      }
    }
  }
`);

export const SECRET_REFERENCES = graphql(`
  query SecretReferences($tenantId: ID!, $fleet: Boolean!) {
    secrets(tenantId: $tenantId, first: 200) {
      nodes {
        reference
      }
    }
    fleet: secrets(tenantId: $tenantId, scope: FLEET, first: 200) @include(if: $fleet) {
      nodes {
        reference
      }
    }
  }
`);

export const GRANT_SECRET = graphql(`
  mutation GrantSecret($input: GrantSecretInput!) {
    grantSecret(input: $input) {
      secretGrant {
        reference
      }
    }
  }
`);

export const REVOKE_SECRET_GRANT = graphql(`
  mutation RevokeSecretGrant($input: RevokeSecretGrantInput!) {
    revokeSecretGrant(input: $input) {
      secretGrant {
        reference
      }
    }
  }
`);
