"""A driver in a process of its own, on whatever Spark it is told, to be killed if need be.

The argument is a JSON object: master or remote, conf, and flaky (tasks go wrong the first time, and
leave a mark beside the state). Then one JSON object a line: folder, name (of a state that is
there), now, triggers. Answers with one line: null, or an error; to an empty object, with Spark's
settings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dpsqlp.engines.spark import engine as spark_engine_module
from dpsqlp.engines.spark.engine import SparkEngine
from dpsqlp.errors import DpsqlpError
from spark import flaky_tasks
from spark.parity import spark_engine, step


def session(options: dict[str, Any]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in options.get("conf", {}).items():
        builder = builder.config(name, value)
    if "remote" in options:
        return builder.remote(options["remote"]).getOrCreate()
    return builder.master(options["master"]).getOrCreate()


def main() -> None:
    """Run what is asked for, until there is no more."""
    options = json.loads(sys.argv[1])
    spark = session(options)
    if "flaky" in options:
        flaky_tasks.install(spark_engine_module, slow=options["flaky"] == "slow")
    engines: dict[tuple[str, str], SparkEngine] = {}
    print("null", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        if not command:
            answer = dict(spark.sparkContext.getConf().getAll())
        else:
            place = command["folder"], command["name"]
            try:
                if place not in engines:
                    engines[place] = spark_engine(spark, Path(place[0]), place[1])
                step(engines[place], command["now"], command["triggers"])
            except DpsqlpError as error:
                answer = str(error)
        print(json.dumps(answer), flush=True)
    for engine in engines.values():
        engine.close()
    spark.stop()


if __name__ == "__main__":
    main()
