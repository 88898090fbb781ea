#!/usr/bin/env python3
"""Checks of `kestrel gateway` that no other server is needed for: rights of access keys, input that
is none, limits. S3_URL, S3_KEY and S3_SECRET name the gateway; S3_READER and S3_READER_SECRET a key
that may only read.

    gateway_checks.py access|hostile|atomic
"""

import datetime
import hashlib
import os
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

from s3client import Checks, by_hand, client, code, raw, signed

BUCKET = "checks"


def access(checks):
    s3 = client()
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"bytes")
    checks.same("without a signature", raw("GET", f"/{BUCKET}/k", {}), (403, "AccessDenied"))
    checks.same("a list without a signature", raw("GET", "/", {}), (403, "AccessDenied"))
    checks.same("another secret", code(client(secret="x" * 40).list_buckets),
                "SignatureDoesNotMatch")
    checks.same("another key", code(client(key="NOSUCHKEY").list_buckets), "InvalidAccessKeyId")
    now = datetime.datetime.now(datetime.timezone.utc)
    for minutes in [-20, 20]:
        when = now + datetime.timedelta(minutes=minutes)
        checks.same(f"a clock {minutes} minutes off", by_hand("GET", f"/{BUCKET}/k", when=when),
                    (403, "RequestTimeTooSkewed"))
    when = now - datetime.timedelta(minutes=10)
    checks.same("a clock 10 minutes off", by_hand("GET", f"/{BUCKET}/k", when=when), (200, ""))
    checks.same("other bytes than signed",
                by_hand("PUT", f"/{BUCKET}/x", b"signed", sent=b"forged")[0] >= 400, True)
    checks.same("they left nothing", code(s3.head_object, Bucket=BUCKET, Key="x"), "404")
    names = signed("GET", f"/{BUCKET}/k")
    checks.same("a signature for another key", raw("GET", f"/{BUCKET}/other", names),
                (403, "SignatureDoesNotMatch"))
    checks.same("a signature of version 2",
                raw("GET", f"/{BUCKET}/k", {"authorization": "AWS a:b", "date": "x"}),
                (400, "InvalidRequest"))
    reader = client(key=os.environ["S3_READER"], secret=os.environ["S3_READER_SECRET"])
    checks.same("a reader reads", reader.get_object(Bucket=BUCKET, Key="k")["Body"].read(),
                b"bytes")
    for name, call, arguments in [
        ("put", reader.put_object, {"Key": "y", "Body": b"1"}),
        ("delete", reader.delete_object, {"Key": "k"}),
        ("tag", reader.put_object_tagging, {"Key": "k", "Tagging": {"TagSet": []}}),
        ("begin an upload", reader.create_multipart_upload, {"Key": "y"}),
        ("copy", reader.copy_object, {"Key": "y", "CopySource": f"{BUCKET}/k"}),
        ("delete the bucket", reader.delete_bucket, {}),
    ]:
        checks.same(f"a reader may not {name}", code(call, Bucket=BUCKET, **arguments),
                    "AccessDenied")

    def fetch(url, data=None, method="GET"):
        try:
            request = urllib.request.Request(url, data=data, method=method)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, b""

    of = {"Bucket": BUCKET, "Key": "k"}
    url = s3.generate_presigned_url("get_object", Params=of, ExpiresIn=60)
    checks.same("a presigned URL", fetch(url), (200, b"bytes"))
    checks.same("one for another key", fetch(url.replace("/k?", "/j?"))[0], 403)
    checks.same("one for another method", fetch(url, method="DELETE")[0], 403)
    short = s3.generate_presigned_url("get_object", Params=of, ExpiresIn=1)
    put = s3.generate_presigned_url("put_object", Params={**of, "Key": "put"}, ExpiresIn=60)
    checks.same("a presigned PUT", fetch(put, b"put", "PUT")[0], 200)
    checks.same("its bytes", s3.get_object(Bucket=BUCKET, Key="put")["Body"].read(), b"put")
    time.sleep(2.1)
    checks.same("one that is over", fetch(short)[0], 403)
    for name, headers in [("a customer's key", {"x-amz-server-side-encryption-customer-algorithm":
                                                "AES256"}),
                          ("an object lock", {"x-amz-object-lock-mode": "GOVERNANCE"})]:
        checks.same(f"{name} is refused", by_hand("PUT", f"/{BUCKET}/z", b"", headers),
                    (501, "NotImplemented"))
    checks.same("a public ACL is refused",
                by_hand("PUT", f"/{BUCKET}/z", b"", {"x-amz-acl": "public-read"}),
                (400, "AccessControlListNotSupported"))


def resident():
    """Bytes of memory of the gateway."""
    for line in open(f"/proc/{os.environ['S3_PID']}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


def open_raw():
    where = urllib.parse.urlsplit(os.environ["S3_URL"])
    return socket.create_connection((where.hostname, where.port), timeout=30)


def head(method, path, names):
    lines = [f"{method} {path} HTTP/1.1"] + [f"{name}: {value}" for name, value in names.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def hostile(checks):
    s3 = client()
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"bytes")
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="up")["UploadId"]
    before = resident()
    for name, body in [("no XML", b"nothing"), ("half XML", b"<Delete><Object>"),
                       ("entities", b'<!DOCTYPE a [<!ENTITY b "cc">]><Delete>&b;</Delete>'),
                       ("deep XML", b"<a>" * 100_000), ("another document", b"<Tagging/>"),
                       ("nothing", b"")]:
        status, told = by_hand("POST", f"/{BUCKET}", body, query="delete=")
        checks.check(f"{name} for a deletion is refused", 400 <= status < 500, (status, told))
        status, told = by_hand("POST", f"/{BUCKET}/up", body, query=f"uploadId={upload}")
        checks.check(f"{name} for an upload's end is refused", 400 <= status < 500, (status, told))
    status, told = by_hand("POST", f"/{BUCKET}", b"<" * (8 << 20), query="delete=")
    checks.check("8 MiB of XML are refused", status == 0 or 400 <= status < 500, (status, told))
    for path in ["/../etc/passwd", f"/{BUCKET}/../../etc/passwd", f"/{BUCKET}/%2e%2e/%2e%2e/k",
                 f"/{BUCKET}/a/%2e%2e/k", f"/{BUCKET}/%2e", f"/{BUCKET}/a%00b", f"/{BUCKET}/%ff",
                 "/.kestrel-s3/uploads", "/.trash/x", f"/{BUCKET}//k", f"/{BUCKET}/%2fk"]:
        for method in ["GET", "PUT", "DELETE"]:
            status, told = by_hand(method, path)
            checks.check(f"{method} {path} is refused", 400 <= status < 500, (status, told))
    for query in ["list-type=2&max-keys=-1", "list-type=2&max-keys=x", "list-type=2&prefix=%ff",
                  "list-type=2&continuation-token=k6", "uploads=&max-uploads=-5"]:
        status, told = by_hand("GET", f"/{BUCKET}", query="&".join(sorted(query.split("&"))))
        checks.check(f"?{query} is answered", status in (200, 400, 403), (status, told))
    for name, line in [("a body that is too short", b"5\r\nab"), ("no chunks", b"x" * 2000),
                       ("a chunk of 4 EiB", b"ffffffffffffffff\r\nabc"),
                       ("an end without a beginning", b"\r\n\r\n"),
                       ("a chunk that ends elsewhere", b"2\r\nabcd\r\n0\r\n\r\n")]:
        names = signed("PUT", f"/{BUCKET}/c", payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                       headers={"x-amz-decoded-content-length": "5",
                                "x-amz-trailer": "x-amz-checksum-crc32"})
        names["content-length"] = str(len(line))
        status, told = raw("PUT", f"/{BUCKET}/c", names, line)
        checks.check(f"{name} is refused", status == 0 or 400 <= status < 500, (status, told))
    for name, text in [("no HTTP", b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n"),
                       ("no request line", b"\r\n\r\n\r\n\r\n"),
                       ("a line without an end", b"GET /" + b"a" * 200_000),
                       ("many headers", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n")]:
        line = open_raw()
        try:
            line.sendall(text)
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(100)
        except OSError:
            answer = b""
        line.close()
        checks.check(f"{name} is refused", answer == b"" or b" 4" in answer[:20], answer)
    endless(checks, before)
    checks.same("it serves", s3.get_object(Bucket=BUCKET, Key="k")["Body"].read(), b"bytes")
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    checks.same("nothing came of all that", keys, ["k"])


def endless(checks, before):
    """One chunk without end, and a signed one that is too long: neither stays in memory."""
    size = 96 << 20
    names = signed("PUT", f"/{BUCKET}/endless", payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                   headers={"x-amz-decoded-content-length": str(size),
                            "x-amz-trailer": "x-amz-checksum-crc32"})
    names["content-length"] = str(size + 100)
    line, most = open_raw(), 0
    line.sendall(head("PUT", f"/{BUCKET}/endless", names) + f"{size:x}\r\n".encode())
    for number in range(size >> 20):
        line.sendall(b"e" * (1 << 20))
        if number % 8 == 0:
            most = max(most, resident())
    line.close()
    # What is written and not stored yet may stay, within --write-buffer.
    checks.check("a chunk of 96 MiB does not stay in memory", most - before < (80 << 20),
                 f"{(most - before) >> 20} MiB more")
    names = signed("PUT", f"/{BUCKET}/signed", payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
                   headers={"x-amz-decoded-content-length": str(size)})
    names["content-length"] = str(size + 1000)
    status, told = raw("PUT", f"/{BUCKET}/signed", names,
                       f"{size:x};chunk-signature={'0' * 64}\r\n".encode() + b"s" * 1000)
    checks.check("a signed chunk of 96 MiB is refused", status == 0 or 400 <= status < 500,
                 (status, told))


def atomic(checks):
    """Readers see one object or the other, and one of many that must be the first is."""
    s3 = client()
    s3.create_bucket(Bucket=BUCKET)
    bodies = [bytes([letter]) * (700_000 + letter) for letter in b"ab"]
    sums = {hashlib.md5(body).hexdigest() for body in bodies}
    s3.put_object(Bucket=BUCKET, Key="d/k", Body=bodies[0])
    stop, bad = threading.Event(), []

    def read():
        mine = client()
        while not stop.is_set():
            answer = mine.get_object(Bucket=BUCKET, Key="d/k")
            found = hashlib.md5(answer["Body"].read()).hexdigest()
            if found not in sums or answer["ETag"].strip('"') != found:
                bad.append((found, answer["ETag"]))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(40):
        s3.put_object(Bucket=BUCKET, Key="d/k", Body=bodies[number % 2])
    stop.set()
    for reader in readers:
        reader.join()
    checks.same("readers see whole objects", bad, [])
    told = []

    def create(number):
        mine = client()
        for key in range(20):
            told.append((key, code(mine.put_object, Bucket=BUCKET, Key=f"once/{key}",
                                   Body=str(number).encode(), IfNoneMatch="*")))

    writers = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    won = [key for key, result in told if result == "ok"]
    checks.same("one creates each object", sorted(won), list(range(20)))
    checks.same("the others hear of it", {result for _, result in told},
                {"ok", "PreconditionFailed"})

    def come_and_go(number):
        mine = client()
        for turn in range(15):
            key = f"deep/er/{number}-{turn % 3}"
            told.append(code(mine.put_object, Bucket=BUCKET, Key=key, Body=b"1"))
            told.append(code(mine.delete_object, Bucket=BUCKET, Key=key))

    told.clear()
    workers = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    checks.same("directories come and go under others", set(told), {"ok"})


def main():
    checks = Checks()
    {"access": access, "hostile": hostile, "atomic": atomic}[sys.argv[1]](checks)
    checks.end()


if __name__ == "__main__":
    main()
