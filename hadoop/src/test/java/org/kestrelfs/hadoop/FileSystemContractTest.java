package org.kestrelfs.hadoop;

import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileSystemContractBaseTest;
import org.junit.Before;

/** Hadoop's older contract tests, of hadoop-common. */
public class FileSystemContractTest extends FileSystemContractBaseTest {

  /** Opens the volume. */
  @Before
  public void setUp() throws Exception {
    fs = FileSystem.get(URI.create(TestedVolume.URI),
        TestedVolume.configure(new Configuration()));
  }
}
