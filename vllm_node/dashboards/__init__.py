"""Dashboards of a node: built here in code, stored as JSON with the role `grafana`, and the import of others.

`store`, `importing` and `cli` run at a site and need no builder library; the modules of the single dashboards,
`vocabulary`, `build` and `pictures` are for developers.
"""
