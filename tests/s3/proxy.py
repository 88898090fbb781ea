"""Tests of kestrel-s3proxy on a real store: proxy.py CONTROL WORK; each test is a function, its
name goes to WORK/proxy.tests."""

import concurrent.futures
import http.client
import json
import random
import socket
import subprocess
import sys
import time

import s3

CONTROL, WORK = sys.argv[1:3]
BODY = random.Random(5).randbytes(300_000)
BROKEN = (OSError, http.client.HTTPException)


def proxy(*words):
    return subprocess.run(
        ["kestrel-s3proxy", *words, "--control", CONTROL],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def rules(text=""):
    proxy("rules", "--set", text)


def counts():
    return json.loads(proxy("counts", "--reset"))


def fails(kind, action, *arguments):
    try:
        action(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"no {kind} from {action.__name__}{arguments}")


def status_of(action, *arguments):
    return fails(s3.S3Error, action, *arguments)


def test_everything_passes_unchanged(store):
    for size in (0, 1, 65536, 300_000):
        store.put(f"a/{size}", BODY[:size])
        assert store.get(f"a/{size}") == BODY[:size]
        assert store.head(f"a/{size}")["Content-Length"] == str(size)
    assert store.get("a/300000", 100, 199) == BODY[100:200]
    assert sorted(store.list("a/")) == [
        ("a/0", 0),
        ("a/1", 1),
        ("a/300000", 300_000),
        ("a/65536", 65536),
    ]
    assert status_of(store.get, "a/none").code == "NoSuchKey"
    assert status_of(s3.Client(secret="wrong").get, "a/1").code == "SignatureDoesNotMatch"
    store.delete("a/0")
    found = counts()
    assert (
        found["requests"]["put"] == 4
        and found["requests"]["get"] == 7
        and found["requests"]["delete"] == 1
    ), found
    assert found["store_errors"]["get"] == 2 and found["requests"] == found["forwarded"], found
    assert found["bytes_up"] == sum((0, 1, 65536, 300_000)), found


def test_conditional_puts_pass(store):
    only_new = {"if-none-match": "*"}
    store.put("c/1", b"first", only_new)
    assert status_of(store.put, "c/1", b"second", only_new).status == 412
    assert store.get("c/1") == b"first"


def test_large_bodies_with_expect(store):
    # curl asks before it sends; the signature is not its concern here: the store refuses, and curl
    # gets that answer.
    with open(f"{WORK}/large", "wb") as file:
        file.write(BODY * 20)
    out = subprocess.run(
        [
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            "Expect: 100-continue",
            "-T",
            f"{WORK}/large",
            f"{store.endpoint}/kestrel/x",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert out == "403", out


def test_status(store):
    rules("status:code=503,kind=get status:code=403,error=RequestTimeTooSkewed,kind=put,count=1")
    error = status_of(store.get, "a/1")
    assert (error.status, error.code) == (503, "SlowDown")
    assert status_of(store.put, "a/new", BODY).code == "RequestTimeTooSkewed"
    store.put("a/new", BODY)
    found = counts()
    assert found["faults"] == {"status": 2} and found["forwarded"]["get"] == 0, found


def test_latency(store):
    rules("latency:ms=300,kind=get")
    begin = time.monotonic()
    store.get("a/1")
    assert time.monotonic() - begin >= 0.3


def test_bandwidth(store):
    rules("bandwidth:down=1000000,up=2000000")
    begin = time.monotonic()
    store.get("a/300000")
    assert time.monotonic() - begin >= 0.29
    begin = time.monotonic()
    store.put("a/up", BODY)
    assert time.monotonic() - begin >= 0.14


def test_reset_and_lost_answer(store):
    rules("reset:kind=put,match=/never")
    assert isinstance(fails(BROKEN, store.put, "r/never", BODY), ConnectionError)
    rules("lost-answer:kind=put,match=/lost")
    fails(BROKEN, store.put, "r/lost", BODY)
    rules()
    assert status_of(store.get, "r/never").code == "NoSuchKey"
    assert store.get("r/lost") == BODY


def test_hang_until_the_rules_change(store):
    rules("hang:kind=get")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(s3.Client().get, "a/1")
        fails(TimeoutError, s3.Client(timeout=0.5).get, "a/1")
        assert not waiting.done()
        rules()
        assert isinstance(waiting.exception(timeout=20), BROKEN)
    assert store.get("a/1") == BODY[:1]


def test_bodies(store):
    rules("truncate:match=/300000")
    assert isinstance(fails(BROKEN, store.get, "a/300000"), http.client.IncompleteRead)
    rules("short:match=/300000")
    short = store.get("a/300000")
    assert len(short) < len(BODY) and short == BODY[: len(short)]
    rules("long:match=/300000")
    long = store.get("a/300000")
    assert len(long) > len(BODY) and long[: len(BODY)] == BODY
    rules("wrong-bytes:match=/300000")
    for begin, end in ((0, 299_999), (5, 5), (70_000, 200_000)):
        wrong = store.get("a/300000", begin, end)
        right = BODY[begin : end + 1]
        assert len(wrong) == len(right) and wrong != right
    rules("wrong-bytes:match=/none")
    assert store.get("a/300000") == BODY


def test_listings(store):
    for number in range(25):
        store.put(f"l/{number:02}", b"x")
    whole = [(f"l/{number:02}", 1) for number in range(25)]
    assert list(store.list("l/", page=10)) == whole
    rules("list-cut:skip=1")
    assert list(store.list("l/", page=10)) == whole[:15]
    rules("list-gap:skip=1,count=1")
    assert list(store.list("l/", page=10)) == whole[:10] + whole[20:]
    rules("list-repeat:skip=1,count=1")
    assert list(store.list("l/", page=10)) == whole[:10] + whole
    rules("status:code=500,kind=list,skip=1,count=1")
    assert status_of(lambda: list(store.list("l/", page=10))).code == "InternalError"


def test_the_same_seed_hits_the_same(store):
    def hits(order):
        rules("status:code=500,kind=get,rate=0.3")
        hit = set()
        for key in order:
            try:
                store.get(key)
            except s3.S3Error:
                hit.add(key)
        return hit

    keys = [f"l/{number:02}" for number in range(25)]
    first = hits(keys)
    assert 0 < len(first) < 25 and hits(reversed(keys)) == first


def test_many_connections(store):
    rules("latency:ms=50,kind=put")
    counts()

    def put_some(number):
        client = s3.Client()
        for turn in range(5):
            client.put(f"m/{number}/{turn}", BODY[: 1000 + number])

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(put_some, range(32)))
    found = counts()
    assert found["requests"]["put"] == 160 and 1 < found["in_flight_max"]["put"] <= 32, found
    assert len(list(store.list("m/"))) == 160


def test_bad_requests_end_their_own_connection_only(store):
    host, port = store.host.split(":")
    for junk in (
        b"\x00" * 100,
        b"GET / HTTP/1.1\r\n" + b"x" * 100_000,
        b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
            try:
                while raw.recv(65536):
                    pass
            except ConnectionError:
                pass
    assert store.get("a/1") == BODY[:1]


def test_bad_rules_are_refused(store):
    rules("latency:ms=1")
    bad = subprocess.run(
        ["kestrel-s3proxy", "rules", "--control", CONTROL, "--set", "latenzy"],
        capture_output=True,
        text=True,
    )
    assert bad.returncode == 2 and "latenzy" in bad.stderr, bad
    assert proxy("rules").strip() == "latency:ms=1"


def main():
    store, failed = s3.Client(), []
    with open(f"{WORK}/proxy.tests", "w", encoding="utf-8") as passed:
        for name, test in list(globals().items()):
            if not name.startswith("test_"):
                continue
            rules()
            counts()
            try:
                test(store)
                print(f"ok   {name[5:].replace('_', ' ')}")
                passed.write(f"{name}\n")
            except Exception as error:  # the others are to run
                failed.append(name)
                print(
                    f"FAIL {name[5:].replace('_', ' ')}: {error!r} at line "
                    f"{error.__traceback__.tb_next.tb_lineno}"
                )
    rules()
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
