"""Serves archives on Ray Serve: the extra `ray` of pyproject.toml, docs/how-to/ray-serve.md.

    models.yaml -> settings -> Serve's configuration: an application for each archive, and one at / for all other routes

    client -> HAProxy -> /predictions/M: replica, the archive's core
                      -> the others:     deploy.hosts.frontend.routes -> a deployment's handle -> replica

A process of an archive has the package `handlers` of that archive: `app` does not import ours.
"""
