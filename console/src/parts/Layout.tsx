import { ActionIcon, AppShell, Burger, Button, Group, NavLink, Text, TextInput, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { type ReactNode, useState } from "react";
import { Link, useLocation } from "wouter";

import { useSession } from "../api/session";

const PAGES = [
  { href: "/", name: "Sites" },
  { href: "/secrets", name: "Secrets" },
  { href: "/audit", name: "Audit trail" },
];

/** The frame around all pages: navigation, the viewer's name and tenant, the colour scheme, and sign-out. */
export function Layout({ children }: { children: ReactNode }) {
  const { viewer, tenantId, setTenantId, signOut } = useSession();
  const { setColorScheme } = useMantineColorScheme();
  const dark = useComputedColorScheme("light") === "dark";
  const [location] = useLocation();
  const [opened, { toggle, close }] = useDisclosure();
  const [typed, setTyped] = useState(tenantId);
  const isActive = (href: string) =>
    href === "/" ? location === "/" || location.startsWith("/sites") : location === href;
  return (
    <AppShell header={{ height: 56 }} navbar={{ width: 220, breakpoint: "sm", collapsed: { mobile: !opened } }} padding="md">
      <AppShell.Header>
        <Group h="100%" px="md" justify="space-between" wrap="nowrap">
          <Group gap="sm" wrap="nowrap">
            <Burger opened={opened} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Menu" />
            <Text fw={700} component="span">
              Better Compute
            </Text>
          </Group>
          <Group gap="xs" wrap="nowrap">
            <Text size="sm" c="dimmed" visibleFrom="sm" component="span">
              {viewer.name} · {tenantId}
            </Text>
            <ActionIcon
              variant="default"
              onClick={() => setColorScheme(dark ? "light" : "dark")}
              aria-label={dark ? "Use the light scheme" : "Use the dark scheme"}
            >
              {dark ? "☀" : "☾"}
            </ActionIcon>
            <Button size="xs" variant="default" onClick={signOut}>
              Sign out
            </Button>
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar p="xs" aria-label="Pages">
        {PAGES.map(({ href, name }) => (
          <NavLink key={href} component={Link} href={href} label={name} active={isActive(href)} onClick={close} />
        ))}
        <NavLink href="/graphql" label="GraphiQL" mt="auto" />
        {viewer.fleetActions.length > 0 && (
          <form
            onSubmit={(event) => {
              event.preventDefault();
              setTenantId(typed.trim());
              close();
            }}
          >
            <TextInput
              label="Look as tenant"
              size="xs"
              p="xs"
              value={typed}
              onChange={(event) => setTyped(event.currentTarget.value)}
            />
          </form>
        )}
      </AppShell.Navbar>
      <AppShell.Main>{children}</AppShell.Main>
    </AppShell>
  );
}
