#!/usr/bin/env python3
"""A small S3 client of the tests' own (Signature Version 4), so that they look at a store with
other eyes than the product.

    s3.py mkbucket | ls [PREFIX] | head KEY | get KEY [FILE] | put KEY FILE | rm KEY…

Environment: S3_ENDPOINT (http://HOST:PORT), S3_BUCKET, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION (us-east-1).
"""

import datetime
import hashlib
import hmac
import http.client
import os
import re
import sys
import urllib.parse
from xml.sax.saxutils import unescape


class S3Error(Exception):
    """An answer that is no success."""

    def __init__(self, status, body):
        code = re.search(rb"<Code>([^<]*)</Code>", body or b"")
        self.status, self.code = status, code.group(1).decode() if code else ""
        super().__init__(f"{status} {self.code}")


class Client:
    """One bucket. Not for several threads at once."""

    def __init__(self, endpoint=None, bucket=None, key=None, secret=None, region=None, timeout=60):
        self.endpoint = endpoint or os.environ["S3_ENDPOINT"]
        self.bucket = bucket or os.environ.get("S3_BUCKET", "kestrel")
        self.key = key or os.environ["AWS_ACCESS_KEY_ID"]
        self.secret = secret or os.environ["AWS_SECRET_ACCESS_KEY"]
        self.region = region or os.environ.get("AWS_REGION", "us-east-1")
        self.host = urllib.parse.urlsplit(self.endpoint).netloc
        self.timeout, self.connection = timeout, None

    def sign(self, method, path, query, headers, digest):
        def mac(key, text):
            return hmac.new(key, text.encode(), hashlib.sha256).digest()

        names = sorted(headers)
        canonical = [
            method,
            path,
            query,
            *(f"{name}:{headers[name]}" for name in names),
            "",
            ";".join(names),
            digest,
        ]
        when = headers["x-amz-date"]
        scope = f"{when[:8]}/{self.region}/s3/aws4_request"
        hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
        key = ("AWS4" + self.secret).encode()
        for part in (when[:8], self.region, "s3", "aws4_request"):
            key = mac(key, part)
        signature = mac(key, f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{hashed}").hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={';'.join(names)}, "
            f"Signature={signature}"
        )

    def request(self, method, key="", query=None, body=b"", headers=None):
        """(status, headers, body) of one request; raises S3Error. Never retries: a fault is to be
        seen."""
        path = "/" + urllib.parse.quote(
            f"{self.bucket}/{key}" if key else self.bucket, safe="/-_.~"
        )
        pairs = sorted((query or {}).items())
        quoted = "&".join(
            f"{urllib.parse.quote(k, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}"
            for k, v in pairs
        )
        digest = hashlib.sha256(body).hexdigest()
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        signed = {"host": self.host, "x-amz-content-sha256": digest, "x-amz-date": now}
        signed.update({name.lower(): value for name, value in (headers or {}).items()})
        signed["authorization"] = self.sign(method, path, quoted, signed, digest)
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.host, timeout=self.timeout)
        try:
            self.connection.request(
                method, path + (f"?{quoted}" if quoted else ""), body=body or None, headers=signed
            )
            answer = self.connection.getresponse()
            content = answer.read()
        except Exception:
            self.connection.close()
            self.connection = None
            raise
        if answer.status >= 300:
            raise S3Error(answer.status, content)
        return answer.status, dict(answer.getheaders()), content

    def make_bucket(self):
        self.request("PUT")

    def put(self, key, body, headers=None):
        return self.request("PUT", key, body=body, headers=headers)

    def get(self, key, begin=None, end=None):
        headers = {} if begin is None else {"range": f"bytes={begin}-{end}"}
        return self.request("GET", key, headers=headers)[2]

    def head(self, key):
        return self.request("HEAD", key)[1]

    def delete(self, key):
        self.request("DELETE", key)

    def list(self, prefix="", page=1000):
        """(key, size) of every object; follows the pages."""
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(page)}
        while True:
            text = self.request("GET", query=query)[2].decode()
            for entry in re.findall(r"<Contents>(.*?)</Contents>", text, re.S):
                key = re.search(r"<Key>(.*?)</Key>", entry, re.S).group(1)
                yield unescape(key), int(re.search(r"<Size>(\d+)</Size>", entry).group(1))
            token = re.search(r"<NextContinuationToken>(.*?)</NextContinuationToken>", text, re.S)
            if "<IsTruncated>true" not in text:
                return
            query["continuation-token"] = unescape(token.group(1))


def main(verb, *words):
    client = Client()
    if verb == "mkbucket":
        client.make_bucket()
    elif verb == "ls":
        for key, size in client.list(*words):
            print(size, key)
    elif verb == "head":
        for name, value in client.head(*words).items():
            print(f"{name}: {value}")
    elif verb == "get":
        content = client.get(words[0])
        if len(words) > 1:
            with open(words[1], "wb") as file:
                file.write(content)
        else:
            sys.stdout.buffer.write(content)
    elif verb == "put":
        with open(words[1], "rb") as file:
            client.put(words[0], file.read())
    elif verb == "rm":
        for key in words:
            client.delete(key)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (S3Error, OSError, http.client.HTTPException) as error:
        raise SystemExit(f"s3.py: {' '.join(sys.argv[1:])}: {error!r}") from None
