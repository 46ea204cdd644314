"""Why a client does not use the proxy: examined beforehand, watched while it runs."""
