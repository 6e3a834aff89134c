import "@mantine/core/styles.css";
import "./console.css";

import { MantineProvider } from "@mantine/core";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Route, Router, Switch } from "wouter";
import { useHashLocation } from "wouter/use-hash-location";

import { SessionProvider } from "./api/session";
import { Audit } from "./pages/Audit";
import { Secrets } from "./pages/Secrets";
import { SignIn } from "./pages/SignIn";
import { Site } from "./pages/Site";
import { Sites } from "./pages/Sites";
import { Layout } from "./parts/Layout";
import { Empty } from "./parts/Notices";
import { contrast, theme } from "./theme";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <MantineProvider theme={theme} cssVariablesResolver={contrast} defaultColorScheme="auto">
      <SessionProvider signIn={(enter, ended) => <SignIn enter={enter} ended={ended} />}>
        <Router hook={useHashLocation}>
          <Layout>
            <Switch>
              <Route path="/">
                <Sites />
              </Route>
              <Route path="/sites/:id">{({ id }) => <Site key={id} id={id} />}</Route>
              <Route path="/secrets">
                <Secrets />
              </Route>
              <Route path="/audit">
                <Audit />
              </Route>
              <Route>
                <Empty>There is no such page.</Empty>
              </Route>
            </Switch>
          </Layout>
        </Router>
      </SessionProvider>
    </MantineProvider>
  </StrictMode>,
);
