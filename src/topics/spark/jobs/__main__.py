"""`python -m topics.spark.jobs NAME …`, and what spark-submit is given: the jobs, as the command `topics` has them."""

from topics.cli import main

main()
