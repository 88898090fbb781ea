import java.util.List;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;

/**
 * SparkParquet URI: writes a table as Parquet in partitions, overwrites a part of it, reads it
 * back, and joins it with itself. For tests/access/hadoop.sh.
 */
public final class SparkParquet {

  private SparkParquet() {
  }

  private static void check(boolean isTrue, String what) {
    if (!isTrue) {
      throw new IllegalStateException(what);
    }
  }

  /** The job. */
  public static void main(String[] arguments) throws Exception {
    String table = arguments[0] + "/table";
    try (SparkSession spark = SparkSession.builder().appName("kestrel").master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.sources.partitionOverwriteMode", "dynamic").getOrCreate()) {
      long rows = 200_000;
      Dataset<Row> numbers = spark.range(rows)
          .selectExpr("id", "id % 8 as part", "concat('name ', id) as name");
      numbers.write().mode(SaveMode.Overwrite).partitionBy("part").parquet(table);
      Dataset<Row> back = spark.read().parquet(table);
      check(back.count() == rows, "all rows come back");
      List<Row> sums = back.selectExpr("sum(id)").collectAsList();
      check(sums.get(0).getLong(0) == rows * (rows - 1) / 2, "their sum is right");
      numbers.where("part = 3").limit(100).write().mode(SaveMode.Overwrite).partitionBy("part")
          .parquet(table);
      Dataset<Row> again = spark.read().parquet(table);
      check(again.count() == rows - rows / 8 + 100, "one partition was replaced");
      long joined = again.as("a").join(again.as("b"), "id").count();
      check(joined == again.count(), "it joins with itself");
      again.repartition(3).write().mode(SaveMode.Append).json(arguments[0] + "/json");
      check(spark.read().json(arguments[0] + "/json").count() == joined, "JSON comes back");
      System.out.println("spark: " + joined + " rows");
    }
  }
}
