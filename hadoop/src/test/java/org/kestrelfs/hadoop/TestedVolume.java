package org.kestrelfs.hadoop;

import org.apache.hadoop.conf.Configuration;

/** The volume of the tests, which tests/access/hadoop.sh serves. */
final class TestedVolume {

  /** Where it is in URIs. */
  static final String URI = "kestrel://tested/";

  private TestedVolume() {
  }

  /** What leads to it. */
  static Configuration configure(Configuration conf) {
    String url = System.getProperty("kestrel.test.url", "");
    if (url.isEmpty() || url.startsWith("$")) {
      throw new IllegalStateException("-Dkestrel.test.url=URL of a volume; see "
          + "tests/access/hadoop.sh");
    }
    conf.set("fs.kestrel.tested.url", url);
    conf.set("fs.AbstractFileSystem.kestrel.impl", Kestrel.class.getName());
    String library = System.getProperty("kestrel.test.library", "");
    if (!library.isEmpty() && !library.startsWith("$")) {
      conf.set("fs.kestrel.library", library);
    }
    return conf;
  }
}
