// Preloaded (NODE_OPTIONS=--import=...) where Node has no env proxy of its own: before 22.21 and 24. The global fetch then obeys
// HTTPS_PROXY, HTTP_PROXY and NO_PROXY, and every SDK that uses it.
import { EnvHttpProxyAgent, setGlobalDispatcher } from "undici";

setGlobalDispatcher(new EnvHttpProxyAgent());
