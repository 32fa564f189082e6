"""The tests' Hub: the configuration that the documentation shows, and what makes it one for tests. JupyterHub reads it.

Three users; a spawner that can be asked to fail, and that gives one of them a Unix user of his own if it may.
"""

import json
import os
import sys
from pathlib import Path

from jupyterhub.spawner import SimpleLocalProcessSpawner

home = Path(os.environ["HUB_HOME"])
exec(compile((home / "shown_config.py").read_text(), "shown_config.py", "exec"))

c = get_config()  # noqa: F821 — JupyterHub's
proxy_port, hub_port, api_port = os.environ["HUB_PORTS"].split()

MAY_LAUNCH = c.Spawner.server_token_scopes


class Spawner(SimpleLocalProcessSpawner):
    """As with other spawners, what can be had depends on the user's options."""

    async def start(self):
        if self.user_options.get("queue") == "nowhere":
            raise RuntimeError("no queue is called nowhere")
        if self.user.name == "bob":
            self.cmd = [*json.loads(os.environ["HUB_AS_BOB"]), *self.cmd]
        return await super().start()


def scopes(spawner):
    """Alice's Hub admin has read the how-to; the others' servers may do what servers may by default."""
    return MAY_LAUNCH if spawner.user.name == "alice" else MAY_LAUNCH[:2]


c.JupyterHub.bind_url = f"http://127.0.0.1:{proxy_port}"
c.JupyterHub.public_url = f"http://127.0.0.1:{proxy_port}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.command = [os.environ["HUB_PROXY"]]
c.ConfigurableHTTPProxy.pid_file = str(home / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{home}/hub.sqlite"
c.JupyterHub.cookie_secret_file = str(home / "cookie_secret")
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = set(os.environ["HUB_USERS"].split())
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}  # seconds before the answer to a request for a server
c.JupyterHub.last_activity_interval = 2
c.JupyterHub.named_server_limit_per_user = 2
c.JupyterHub.spawner_class = Spawner
c.SimpleLocalProcessSpawner.home_dir_template = str(home / "{username}")
c.Spawner.cmd = [str(Path(sys.executable).parent / "jupyterhub-singleuser")]
c.Spawner.args = ["--LabApp.expose_app_in_browser=True", f"--LabApp.extra_labextensions_path={home / 'extensions'}"]
if os.geteuid() == 0:
    c.Spawner.args.append("--allow-root")
c.Spawner.environment = {
    "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
    "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
    "JUPYTER_CONFIG_PATH": f"{home / 'etc'}:{os.environ['HUB_ETC']}",
}
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
c.Spawner.server_token_scopes = scopes
[culling] = c.JupyterHub.load_roles
c.JupyterHub.services += [
    {"name": "tests", "api_token": os.environ["HUB_TOKEN"]},
    {"name": "impatient-culler", "api_token": os.environ["HUB_CULLER_TOKEN"]},  # has the shown rights for one user only
]
c.JupyterHub.load_roles += [
    {"name": "tests", "scopes": ["admin:users", "admin:servers", "access:servers", "tokens"], "services": ["tests"]},
    {
        "name": "impatient-culler",
        "scopes": [f"{scope}!user=carol" for scope in culling["scopes"]],
        "services": ["impatient-culler"],
    },
]
