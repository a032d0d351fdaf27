"""People who sign in at an OpenID Connect issuer: their ID tokens are accepted as bearer tokens.

`config` reads the file that names the issuers, `fetching` keeps their public keys current in the
background, `keys` holds those keys, `envelope` checks signatures, and `issuers` turns the claims of
a token into an identity. `host/server/authenticator` asks `issuers` for every request that carries
such a token.
"""
