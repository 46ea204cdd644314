"""The environment of a child whose LLM traffic goes through the proxy: variables, certificates, shells."""
