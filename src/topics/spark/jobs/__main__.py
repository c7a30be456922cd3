"""`python -m topics.spark.jobs NAME …`, and what spark-submit is given: the jobs, as the command `topics` has them.

spark-submit --master spark://host:7077 "$(python -m topics.spark.jobs --where)" archive orders /data/lake --once
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Run as a file, Python looks for modules here first, where `progress` and others are not what is asked for.
sys.path[:] = [place for place in sys.path if Path(place).resolve() != HERE]

from topics.cli import main  # noqa: E402

if sys.argv[1:] == ["--where"]:
    print(Path(__file__).resolve())  # noqa: T201
else:
    if sys.argv[1:2] in (["import"], ["export"], ["report"]):
        sys.argv.append("--spark")  # whoever asks for a job of Spark gets one, also for a small file
    main()
