"""Makes clips.zip: small videos of many containers, and what OpenCV 5.0.0 (FFmpeg inside) says of each, read as vLLM 0.32
reads it. Needs: pip install opencv-python-headless==5.0.0.* av==18.1.0 numpy"""
import io, json, os, struct, tempfile, zipfile
from fractions import Fraction

import av
import cv2
import cv2.videoio_registry as registry
import numpy as np

API = next(b for b in registry.getStreamBufferedBackends() if registry.hasBackend(b))


def facts(data):
    cap = cv2.VideoCapture(io.BytesIO(data), API, [])
    if not cap.isOpened():
        return None
    frames, fps = int(cap.get(cv2.CAP_PROP_FRAME_COUNT)), cap.get(cv2.CAP_PROP_FPS)
    width, height = int(cap.get(cv2.CAP_PROP_FRAME_WIDTH)), int(cap.get(cv2.CAP_PROP_FRAME_HEIGHT))
    if frames > 0 and cap.set(cv2.CAP_PROP_POS_AVI_RATIO, 1.0):
        seen, end = int(cap.get(cv2.CAP_PROP_POS_FRAMES)), not cap.grab()
        cap.set(cv2.CAP_PROP_POS_FRAMES, 0)
        if end and 0 < seen < frames - 1:
            frames = seen
    ok, picture = cap.read()
    if ok and picture.shape[:2] != (height, width):
        height, width = picture.shape[:2]
    return {"frames": frames, "fps": fps, "width": width, "height": height}


def make(fmt, codec, w, h, n, rate, opts=None, mux=None, times=None, audio=None):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "x")
        c = av.open(path, "w", format=fmt, options=mux or {})
        s = c.add_stream(codec, rate=rate)
        s.width, s.height, s.pix_fmt, s.options = w, h, "yuv420p", opts or {}
        sound = c.add_stream(audio, rate=48000) if audio else None
        for i in range(n):
            img = np.zeros((h, w, 3), np.uint8)
            img[:, :, 0], img[:, : (i * 3) % w, 1] = i * 9 % 255, 200
            f = av.VideoFrame.from_ndarray(img, format="rgb24")
            if times:
                f.pts, f.time_base = times[i], Fraction(1, 1000)
            c.mux(s.encode(f))
        c.mux(s.encode(None))
        if sound:
            for t in range(0, 20480, 1024):
                fr = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
                fr.sample_rate, fr.pts = 48000, t
                c.mux(sound.encode(fr))
            c.mux(sound.encode(None))
        c.close()
        with open(path, "rb") as f:
            return f.read()


def turned(data, a, b, c, d):
    """Writes another matrix into tkhd."""
    at = data.index(b"tkhd") + 4 + 40
    m = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    return data[:at] + m + data[at + 36 :]


def edited(data, length, at):
    """Writes another edit."""
    i = data.index(b"elst") + 4 + 8
    return data[:i] + struct.pack(">Ii", length, at) + data[i + 8 :]


NTSC = Fraction(30000, 1001)
clips = {
    "mpeg4.mp4": make("mp4", "mpeg4", 112, 84, 8, 4),
    "ntsc.mp4": make("mp4", "libx264", 160, 96, 37, NTSC),
    "reordered.mp4": make("mp4", "libx264", 160, 96, 50, 25, opts={"bf": "3", "g": "12"}),
    "faststart.mp4": make("mp4", "libx264", 160, 96, 24, 24, mux={"movflags": "faststart"}),
    "negative_cts.mp4": make("mp4", "libx264", 160, 96, 24, 24, mux={"movflags": "negative_cts_offsets"}),
    "noedit.mp4": make("mp4", "libx264", 160, 96, 24, 24, mux={"use_editlist": "0"}),
    "fragments.mp4": make("mp4", "libx264", 160, 96, 24, 24, mux={"movflags": "frag_keyframe+empty_moov"}),
    "plain.mov": make("mov", "libx264", 160, 96, 30, 30),
    "sound.mp4": make("mp4", "libx264", 160, 96, 30, 30, audio="aac"),
    "one.mp4": make("mp4", "mpeg4", 64, 64, 1, 10),
    "odd.mp4": make("mp4", "libx264", 130, 98, 9, 15),
    "varying.mp4": make("mp4", "libx264", 64, 64, 8, 30, times=[0, 100, 150, 400, 500, 900, 1000, 1300]),
    "hevc.mp4": make("mp4", "libx265", 160, 96, 20, 20),
    "vp9.webm": make("webm", "libvpx-vp9", 160, 96, 30, 30),
    "vp8.webm": make("webm", "libvpx", 160, 96, 31, Fraction(24000, 1001)),
    "sound.webm": make("webm", "libvpx", 160, 96, 12, 12, audio="libopus"),
    "ntsc.mkv": make("matroska", "libx264", 160, 96, 33, NTSC),
    "slow.mkv": make("matroska", "mpeg4", 64, 64, 7, 3),
    "plain.avi": make("avi", "mpeg4", 112, 84, 12, 12),
}
base = clips["mpeg4.mp4"]
clips["turned90.mp4"] = turned(base, 0, 1, -1, 0)
clips["turned180.mp4"] = turned(base, -1, 0, 0, -1)
clips["turned270.mp4"] = turned(base, 0, -1, 1, 0)
clips["cut_front.mp4"] = edited(clips["reordered.mp4"], 1000, 12800)
clips["cut_end.mp4"] = edited(clips["reordered.mp4"], 1000, 1024)
clips["cut_none.mp4"] = edited(clips["reordered.mp4"], 9000, 1024)

with zipfile.ZipFile("clips.zip", "w", zipfile.ZIP_DEFLATED) as z:
    all = {}
    for name, data in clips.items():
        z.writestr(name, data)
        all[name] = facts(data)
        print(name, len(data), all[name])
    z.writestr("facts.json", json.dumps(all, indent=1))
