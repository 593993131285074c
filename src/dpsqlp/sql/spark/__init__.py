"""The row query on Spark: its text, and the types of the views that it reads."""

from dpsqlp.sql.spark.cells import spark_type
from dpsqlp.sql.spark.rows import known_columns, spark_rows

__all__ = ["known_columns", "spark_rows", "spark_type"]
