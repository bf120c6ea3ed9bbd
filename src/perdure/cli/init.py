"""`perdure init`: a small app that works, to begin with. Writes one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.errors import ConfigError

Target = Annotated[Path, typer.Argument(metavar="FILE", help="The new file; an existing one is never overwritten.")]

TEXT = '''"""The jobs of this project. Run them with: perdure worker {module}:app"""

from perdure import JobContext, Perdure

app = Perdure("jobs.db")  # one file; or a URL such as postgresql://localhost/shop


@app.job(retry=3)
def greet(ctx: JobContext, name: str) -> str:
    ctx.log.info("attempt %s", ctx.attempt)
    return f"Hello, {{name}}!"


if __name__ == "__main__":
    job = greet.enqueue(name="world")
    print("enqueued", job.id)
'''


def init(file: Target = Path("jobs.py")) -> None:
    """Write a small app that works, and say how to run it."""
    module = file.stem
    if file.suffix != ".py" or not module.isidentifier():
        raise ConfigError(f"{str(file)!r} cannot be a module; name it like jobs.py", code="file_invalid")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(TEXT.format(module=module))
    except FileExistsError:
        raise ConfigError(
            f"{file} is there already and was left as it is; name another file, as in perdure init my_jobs.py",
            code="file_exists",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written ({error.strerror}); choose another place", code="file_invalid"
        ) from error
    there = "" if file.parent == Path() else f"cd {file.parent} && "
    print(f"Wrote {file}. Enqueue a job, and run it:\n")
    print(f"  {there}perdure enqueue greet name=world --app {module}:app")
    print(f"  {there}perdure worker {module}:app --until-idle")
