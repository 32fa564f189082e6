"""Routes: the server's REST interface for browsers, each for authenticated and authorized users. All lie under
``{base_url}jdist/``.

::

    GET    clusters                        read      all clusters, without their ranks
    POST   clusters                        write     start one: {"nproc_per_node": 2, …}; 202, it goes on
    GET    clusters/NAME                   read      all that is known of one
    DELETE clusters/NAME                   write     stop it; cancel its start; forget a start that failed
    GET    clusters/NAME/attach            read      the lines of a notebook's cell that attaches to it
    POST   clusters/NAME/interrupt         execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/restart           execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/revive            execute   start its controller again, which has died
    GET    clusters/NAME/trace             read      ?run=N (the last one): its calls of torch.distributed, for drawing
    GET    clusters/NAME/ranks/R/logs      read      ?lines=200
    GET    clusters/NAME/ranks/R/stack     read      the stack of its main thread
    GET    clusters/NAME/ranks/R/console   read      how a terminal on its node, or of this server, is attached to it
    GET    launch                          read      launchers, limits and defaults of a start

An error is ``{"message": …, "reason": …}``: 400 cannot be done as asked, 404 no such cluster, 502 it does not answer or
could not be started, 504 timed out. 202: it is under way, and events report its result.
"""

from typing import Any

from jdist.server.routes import clusters, runs

_NAME = r"([^/]+)"
_RANK = rf"{_NAME}/ranks/([0-9]{{1,9}})"

ROUTES: list[tuple[str, Any]] = [
    (r"jdist/clusters", clusters.ClustersHandler),
    (rf"jdist/clusters/{_NAME}", clusters.ClusterHandler),
    (rf"jdist/clusters/{_NAME}/attach", clusters.AttachHandler),
    (rf"jdist/clusters/{_NAME}/interrupt", runs.InterruptHandler),
    (rf"jdist/clusters/{_NAME}/restart", runs.RestartHandler),
    (rf"jdist/clusters/{_NAME}/revive", clusters.ReviveHandler),
    (rf"jdist/clusters/{_NAME}/trace", runs.TraceHandler),
    (rf"jdist/clusters/{_RANK}/logs", runs.LogsHandler),
    (rf"jdist/clusters/{_RANK}/stack", runs.StackHandler),
    (rf"jdist/clusters/{_RANK}/console", runs.ConsoleHandler),
    (r"jdist/launch", clusters.LaunchHandler),
]
