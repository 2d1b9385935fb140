#!/bin/sh
# Starts Apache Cassandra 5 out of Maven's packages, with further options of java: `cassandra.sh -Dcassandra.config=…`.
# Needs a JDK 17, and Maven once. `loadtest workers --stores cassandra` runs it.
set -eu
version=5.0.6
[ "${1:-}" != --version ] || { echo "Apache Cassandra $version"; exit; }
jars=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/cassandra-$version
if [ ! -d "$jars" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cat > "$work/pom.xml" << POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>loadtest</groupId><artifactId>cassandra</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>$version</version>
    </dependency>
  </dependencies>
</project>
POM
  mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" >&2
  cat > "$work/jars/logback.xml" << XML
<configuration>
  <appender name="stderr" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target><encoder><pattern>%level %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="stderr"/></root>
</configuration>
XML
  mv "$work/jars" "$jars"
fi
# Packages of Java that it reaches into.
for package in java.io java.lang java.nio jdk.internal.misc jdk.internal.ref sun.nio.ch; do
  set -- --add-opens "java.base/$package=ALL-UNNAMED" "$@"
done
exec java -Xms2G -Xmx2G -cp "$jars:$jars/*" "$@" org.apache.cassandra.service.CassandraDaemon
