# A publisher as vLLM runs it: PUB with heartbeats on argv[1], replay ROUTER on the next port, 20 batches a second.
import sys, time, zmq

port, life = int(sys.argv[1]), sys.argv[2]
ctx = zmq.Context()
pub = ctx.socket(zmq.PUB)
for option, value in ((zmq.HEARTBEAT_IVL, 300), (zmq.HEARTBEAT_TIMEOUT, 300), (zmq.HEARTBEAT_TTL, 900)):
    pub.setsockopt(option, value)
pub.bind(f"tcp://127.0.0.1:{port}")
router = ctx.socket(zmq.ROUTER)
router.bind(f"tcp://127.0.0.1:{port + 1}")
for seq in range(10**6):
    pub.send_multipart([b"kv@worker", seq.to_bytes(8, "big"), life.encode()])
    pub.send_multipart([b"other", seq.to_bytes(8, "big"), b"not for us"])
    if router.poll(50):
        who, empty, start = router.recv_multipart()
        for old in range(int.from_bytes(start, "big"), seq + 1):
            router.send_multipart([who, b"", b"kv@worker", old.to_bytes(8, "big"), life.encode()])
        router.send_multipart([who, b"", b"", b"\xff" * 8, b""])
