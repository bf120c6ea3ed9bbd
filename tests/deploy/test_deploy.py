"""The files in examples/deploy: checked against the published schemas, and their commands run as real processes.

There is no container engine here. What stands in for the image is a folder: the Dockerfile's COPY and RUN are done in
it, with a new virtual environment as its Python. That of the operating system, `useradd`, is left out.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.customers import PATIENCE_S, free_port, post
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def service(name: str) -> dict[str, list[str]]:
    """The section [Service] of a unit."""
    found: dict[str, list[str]] = {}
    section = (DEPLOY / "systemd" / name).read_text("utf-8").partition("[Service]\n")[2].partition("\n[")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def compose(path: Path) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["services"]
    return services


def manifests() -> dict[tuple[str, str], Any]:
    """By kind and name."""
    found = (one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text("utf-8")))
    return {(one["kind"], one["metadata"]["name"]): one["spec"] for one in found}


# -- as written ------------------------------------------------------------------------------------------------------


def checked(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_files_fit_the_specification() -> None:
    checked("check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, COMPOSE))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    checked("kubernetes_validate", "--strict", str(path))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_can_read_the_units(tmp_path: Path) -> None:
    """With programs that exist in the place of those of the shop."""
    for unit in UNITS:
        text = unit.read_text("utf-8")
        for program in ("perdure", "uvicorn"):
            text = text.replace(f"/srv/shop/.venv/bin/{program}", "/bin/true")
        (tmp_path / unit.name).write_text(text, "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_whoever_stops_a_worker_waits_longer_than_its_grace() -> None:
    for path in COMPOSE:
        worker = compose(path)["worker"]
        assert grace(worker["command"]) < float(worker["stop_grace_period"].removesuffix("s"))
    pod = manifests()["Deployment", "shop-worker"]["template"]["spec"]
    assert grace(pod["containers"][0]["command"]) < pod["terminationGracePeriodSeconds"]
    unit = service("shop-worker@.service")
    assert grace(shlex.split(unit["ExecStart"][0])) < float(unit["TimeoutStopSec"][0])


def grace(command: Sequence[str]) -> float:
    return float(command[command.index("--grace") + 1])


# -- as run ----------------------------------------------------------------------------------------------------------


class Image:
    """A folder that stands for the file system of the image, made as the Dockerfile says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "venv" / "bin"
        self._place = "/"
        self.variables: dict[str, str] = {}
        self.command: list[str] = []
        venv.create(folder / "venv", with_pip=True)
        for word, rest in instructions(DEPLOY / "Dockerfile"):
            getattr(self, f"_{word.lower()}")(rest)

    def inside(self, path: str) -> Path:
        """The place of a path of the image."""
        return self._folder / (Path(self._place) / path).relative_to("/")

    @property
    def place(self) -> Path:
        return self.inside(".")

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """That of a process: of the image, and its own. SQLite files are in the image's folder."""
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        said = {**self.variables, **own}
        moved = {name: value.replace(":////var/", f":///{self._folder}/var/") for name, value in said.items()}
        return {"PATH": path, "HOME": str(self._folder), **moved}

    def _from(self, rest: str) -> None:
        assert rest.startswith("python:3.")

    def _user(self, rest: str) -> None:
        assert rest == "shop"

    def _env(self, rest: str) -> None:
        self.variables |= dict(one.split("=", 1) for one in shlex.split(rest))

    def _workdir(self, rest: str) -> None:
        self._place = rest
        self.place.mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        for source in (ROOT / one for one in sources):
            to = self.inside(target)
            if source.is_dir():
                shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                to = to / source.name if target.endswith("/") else to
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, to)

    def _run(self, rest: str) -> None:
        if rest.startswith("useradd "):  # of the operating system: it would change this machine
            rest = rest.partition(" && ")[2].replace(" -o shop -g shop", "").replace(" /var/", f" {self._folder}/var/")
        done = subprocess.run(
            ["/bin/sh", "-c", rest.replace('"/src', f'"{self._folder}/src')],
            cwd=self.place,
            env={**os.environ, **self.environment({})},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S * 2,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _cmd(self, rest: str) -> None:
        self.command = json.loads(rest)


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    for line in dockerfile.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


@dataclass(frozen=True)
class Plan:
    """What a deployment runs."""

    environment: Mapping[str, str]
    web: Sequence[str]
    worker: Sequence[str]
    upgrade: Sequence[str] | None = None
    health: Sequence[str] | None = None
    pages: Sequence[str] = ("/orders/",)


def of_compose(path: Path) -> Plan:
    services = compose(path)
    upgrade = services.get("upgrade", {}).get("command")
    health = services["worker"]["healthcheck"]["test"]
    assert health[0] == "CMD"
    environment = services["web"]["environment"]
    return Plan(environment, services["web"]["command"], services["worker"]["command"], upgrade, health[1:])


def of_systemd() -> Plan:
    units = [service(name) for name in ("shop-web.service", "shop-worker@.service", "shop-upgrade.service")]
    assert units[0]["Environment"] == units[1]["Environment"] == units[2]["Environment"]
    environment = dict(one.split("=", 1) for one in units[0]["Environment"])
    web, worker, upgrade = (shlex.split(unit["ExecStart"][0].removeprefix("/srv/shop/.venv/bin/")) for unit in units)
    return Plan(environment, web, worker, upgrade)


def of_kubernetes() -> Plan:
    found = manifests()
    web, worker, upgrade = (
        found[what]["template"]["spec"]["containers"][0]
        for what in (("Deployment", "shop-web"), ("Deployment", "shop-worker"), ("Job", "shop-upgrade"))
    )
    pages = [web[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    probe = worker["startupProbe"]["exec"]["command"]
    return Plan({"DATABASE_URL": "postgresql"}, web["command"], worker["command"], upgrade["command"], probe, pages)


class Deployed:
    """A plan as processes, with what differs here: the server, the port, the loopback address."""

    def __init__(self, plan: Plan, image: Image, folder: Path, url: str | None) -> None:
        self.port = free_port()
        self.plan, self._place, self._log = plan, image.place, folder / "log"
        environment = dict(plan.environment)
        if environment["DATABASE_URL"].startswith("postgresql"):
            assert url is not None
            environment["DATABASE_URL"] = url.replace("postgresql://", "postgresql+psycopg://", 1)
        self._environment = image.environment(environment)
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, command: Sequence[str]) -> int:
        return self.start(command).wait(PATIENCE_S)

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        here = {"8000": str(self.port), "0.0.0.0": "127.0.0.1"}
        with self._log.open("ab") as file:
            process = subprocess.Popen(
                [here.get(word, word) for word in command],
                cwd=self._place,
                env=self._environment,
                stdout=file,
                stderr=file,
                executable=shutil.which(command[0], path=self._environment["PATH"]),
            )
        self._processes.append(process)
        return process

    def get(self, path: str) -> tuple[int, str] | None:
        """Status and body. None: there is no reply."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline, self._log.read_text("utf-8", "replace")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


PLANS = {
    "compose": lambda: of_compose(DEPLOY / "compose.yaml"),
    "compose-sqlite": lambda: of_compose(DEPLOY / "compose.sqlite.yaml"),
    "systemd": of_systemd,
    "kubernetes": of_kubernetes,
}
ON_SERVERS = ("compose", "kubernetes")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.postgres] if name in ON_SERVERS else []) for name in PLANS]
)
def deployed(request: pytest.FixtureRequest, image: Image, tmp_path: Path) -> Iterator[Deployed]:
    url = request.getfixturevalue("postgres_url") if request.param in ON_SERVERS else None
    shutil.rmtree(image.inside("/var/lib/shop"))
    image.inside("/var/lib/shop").mkdir()
    deployed = Deployed(PLANS[request.param](), image, tmp_path, url)
    yield deployed
    deployed.stop()


def test_an_order_is_placed_and_packed_and_the_worker_stops_when_told(deployed: Deployed) -> None:
    plan = deployed.plan
    if plan.upgrade:
        assert deployed.run(plan.upgrade) == 0
    if plan.health:
        assert deployed.run(plan.health) == 1  # no worker yet
    deployed.start(plan.web)
    worker = deployed.start(plan.worker)
    deployed.until(lambda: deployed.get("/orders/") is not None)
    assert [reply[0] for page in plan.pages if (reply := deployed.get(page))] == [200] * len(plan.pages)
    assert post(deployed.port, "/orders/?number=1&article=chair") == 201
    deployed.until(lambda: deployed.get("/orders/") == (200, '{"1":true}'))
    if plan.health:
        assert deployed.run(plan.health) == 0
    worker.terminate()
    assert worker.wait(PATIENCE_S) == 0


def test_the_image_runs_a_worker_by_itself(image: Image, tmp_path: Path) -> None:
    shutil.rmtree(image.inside("/var/lib/shop"))
    image.inside("/var/lib/shop").mkdir()
    alone = Deployed(Plan({"DATABASE_URL": image.variables["DATABASE_URL"]}, (), image.command), image, tmp_path, None)
    try:
        worker = alone.start(image.command)
        alone.until(lambda: image.inside("/var/lib/shop/shop.db").exists())
        alone.until(lambda: alone.run(["perdure", "health"]) == 0)
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0
    finally:
        alone.stop()
