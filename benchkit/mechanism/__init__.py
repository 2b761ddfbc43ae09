"""The route-block study: which routes share a block, which arithmetic their block gets, and what an exchange of two would change."""
