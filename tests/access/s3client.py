"""What the tests of `kestrel gateway` have in common: a client, and requests by hand."""

import hashlib
import http.client
import os
import ssl
import urllib.parse

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from sigv4 import REGION, signed


def client(url=None, key=None, secret=None, **more):
    """A client of the gateway that the environment names, which tries nothing twice."""
    config = Config(
        retries={"max_attempts": 0, "mode": "standard"},
        s3={"addressing_style": "path"},
        signature_version="s3v4",
        connect_timeout=10,
        read_timeout=60,
        **more,
    )
    return boto3.client(
        "s3",
        endpoint_url=url or os.environ["S3_URL"],
        aws_access_key_id=key or os.environ["S3_KEY"],
        aws_secret_access_key=secret or os.environ["S3_SECRET"],
        region_name=REGION,
        verify=os.environ.get("S3_CA") or None,
        config=config,
    )


def code(call, *args, **kwargs):
    """The code of the error that a call fails with, or 'ok'."""
    try:
        call(*args, **kwargs)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "ok"


class Checks:
    """Counts checks, as `counted` of tests/lib.sh wants to read it."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, text, is_good, found=""):
        if is_good:
            self.passed += 1
            print("ok  ", text)
        else:
            self.failed += 1
            print("FAIL", text, found)

    def same(self, text, found, wanted):
        self.check(text, found == wanted, f"{found!r} is not {wanted!r}")

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return self.failed > 0


def connection(url=None, timeout=20):
    parts = urllib.parse.urlsplit(url or os.environ["S3_URL"])
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=os.environ["S3_CA"])
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout,
                                           context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def by_hand(method, path, body=b"", headers=None, query="", sent=None, **how):
    """Sends a request that is signed by hand; status, and the code of an error."""
    names = signed(method, path, body, headers, query, **how)
    return raw(method, path + (f"?{query}" if query else ""), names, sent or body)


def raw(method, target, headers, body=b""):
    """Sends a request as it is; status, and the code of an error."""
    line = connection()
    try:
        line.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        names = {name.lower() for name in headers}
        if "host" not in names:
            line.putheader("host", f"{line.host}:{line.port}")
        for name, value in headers.items():
            line.putheader(name, value)
        if "content-length" not in names and "transfer-encoding" not in names:
            line.putheader("content-length", str(len(body)))
        line.endheaders()
        try:
            line.send(body)
        except OSError:
            pass
        answer = line.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, type(error).__name__
    finally:
        line.close()
    begin, end = text.find("<Code>"), text.find("</Code>")
    return answer.status, text[begin + 6:end] if begin >= 0 else ""
