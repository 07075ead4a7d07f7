"""Texts with every kind of collective, for tests of each target that has them."""
from __future__ import annotations

import numpy as np

from hloc.api import compile_for_devices
from hloc.evaluate.simulate import simulated_devices
from hloc.text import parse_module

SUM = """HloModule sum, replica_count=4
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[300] parameter(0)
  s = f32[300] all-reduce(x), replica_groups={}, to_apply=add
  i = u32[] replica-id()
  ROOT t = (f32[300], u32[]) tuple(s, i)
}
"""
ALL_KINDS = """HloModule m, num_partitions=2
f {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] {op}(a, b) }}
ENTRY e {{ x = {t}[4,{n}] parameter(0)
  s = {t}[4,{n}] all-reduce(x), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=f
  r = {t}[2,{n}] reduce-scatter(x), channel_id=2, replica_groups={{{{0,1}}}}, use_global_device_ids=true, dimensions={{0}}, to_apply=f
  g = {t}[4,{m}] all-gather(x), channel_id=3, replica_groups={{{{0,1}}}}, use_global_device_ids=true, dimensions={{1}}
  t = {t}[4,{n}] all-to-all(x), channel_id=4, replica_groups={{{{1,0}}}}, dimensions={{1}}
  p = {t}[4,{n}] collective-permute(x), channel_id=5, source_target_pairs={{{{0,1}}}}
  b = {t}[4,{n}] collective-broadcast(x), channel_id=6, replica_groups={{{{1,0}}}}
  ROOT o = ({t}[4,{n}], {t}[2,{n}], {t}[4,{m}], {t}[4,{n}], {t}[4,{n}], {t}[4,{n}]) tuple(s, r, g, t, p, b) }}
"""
RING = """HloModule m, num_partitions=3
ENTRY e { x = f32[4] parameter(0)  start = token[] after-all()
  s = (f32[4], u32[], token[]) send(x, start), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,0}}}
  sd = token[] send-done(s), channel_id=1
  r = (f32[4], u32[], token[]) recv(sd), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,0}}}
  rd = (f32[4], token[]) recv-done(r), channel_id=1
  y = f32[4] get-tuple-element(rd), index=0
  sent = (f32[4], u32[], token[]) send(y, sd), channel_id=2, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,1}}"}
  sd2 = token[] send-done(sent), channel_id=2
  r2 = (f32[4], u32[], token[]) recv(sd2), channel_id=2, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,1}}"}
  rd2 = (f32[4], token[]) recv-done(r2), channel_id=2
  ROOT z = f32[4] get-tuple-element(rd2), index=0 }
"""
TUPLES = """HloModule m, num_partitions=3
ENTRY e { x = f32[4] parameter(0)  n = s32[2] parameter(1)  start = token[] after-all()  both = (f32[4], s32[2]) tuple(x, n)
  s = ((f32[4], s32[2]), u32[], token[]) send(both, start), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  sd = token[] send-done(s), channel_id=1
  r = ((f32[4], s32[2]), u32[], token[]) recv(sd), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  rd = ((f32[4], s32[2]), token[]) recv-done(r), channel_id=1
  d = (f32[4], s32[2]) get-tuple-element(rd), index=0  y = f32[4] get-tuple-element(d), index=0  m = s32[2] get-tuple-element(d), index=1
  own = (f32[4], s32[2]) get-tuple-element(s), index=0  k = s32[2] get-tuple-element(own), index=1  c = u32[] get-tuple-element(r), index=1
  ROOT t = (f32[4], s32[2], s32[2], u32[]) tuple(y, m, k, c) }
"""
SLICES = """HloModule m, num_partitions=3
ENTRY e { x = f32[4,3] parameter(0)  y = f32[4,3] parameter(1)  i = s32[] parameter(2)
  zero = s32[] constant(0)  two = s32[] constant(2)
  a = (s32[], s32[]) tuple(i, zero)  b = (s32[], s32[]) tuple(two, zero)
  from = ((s32[], s32[]), (s32[], s32[])) tuple(a, b)  to = ((s32[], s32[]), (s32[], s32[])) tuple(b, a)
  ROOT r = f32[4,3] collective-permute(x, y, from, to), channel_id=1, source_target_pairs={{0,1},{1,2},{0,2}}, slice_sizes={{1,3},{2,2}} }
"""
SIZES = """HloModule m, replica_count=3
f { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] subtract(a, b) }
ENTRY e { x = f32[4] parameter(0)  ROOT s = f32[4] all-reduce(x), replica_groups={{2,0},{1}}, to_apply=f }
"""
RAGGED = """HloModule m, replica_count=2
ENTRY e { x = f32[4,2] parameter(0)  y = f32[5,2] parameter(1)
  starts = s64[2] parameter(2)  sizes = s64[2] parameter(3)  places = s64[2] parameter(4)  coming = s64[2] parameter(5)
  ROOT r = f32[5,2] ragged-all-to-all(x, y, starts, sizes, places, coming), replica_groups={{0,1}} }
"""
LOOP = """HloModule m, num_partitions=3
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
c { s = (s32[], f32[N]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(40)  ROOT l = pred[] compare(i, n), direction=LT }
b { s = (s32[], f32[N]) parameter(0)  i = s32[] get-tuple-element(s), index=0  x = f32[N] get-tuple-element(s), index=1
  one = s32[] constant(1)  j = s32[] add(i, one)
  p = f32[N] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}
  h = f32[] constant(0.25)  q = f32[N] broadcast(h), dimensions={}
  t = f32[N] all-reduce(p), channel_id=2, replica_groups={{0,1,2}}, use_global_device_ids=true, to_apply=add
  m = f32[N] multiply(t, q)  y = f32[N] add(m, p)  z = f32[N] multiply(y, q)  ROOT o = (s32[], f32[N]) tuple(j, z) }
ENTRY e { x = f32[N] parameter(0)  z = s32[] constant(0)  s = (s32[], f32[N]) tuple(z, x)
  w = (s32[], f32[N]) while(s), condition=c, body=b  ROOT r = f32[N] get-tuple-element(w), index=1 }
"""
ROWS = [[np.int64([0, 1]), np.int64([1, 3]), np.int64([0, 2]), np.int64([1, 2])],
        [np.int64([2, 0]), np.int64([2, 1]), np.int64([1, 0]), np.int64([3, 1])]]
FORMS = {"ring": (RING, lambda d: [np.arange(4, dtype=np.float32) + 10 * d]),
         "tuples": (TUPLES, lambda d: [np.arange(4, dtype=np.float32) + 10 * d, np.int32([d, d + 5])]),
         "slices": (SLICES, lambda d: [np.arange(12, dtype=np.float32).reshape(4, 3) + 100 * d,
                                       -np.ones((4, 3), np.float32), np.int32(d)]),
         "sizes": (SIZES, lambda d: [np.arange(4, dtype=np.float32) * (d + 1)]),
         "ragged": (RAGGED, lambda d: [np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * d,
                                       np.full((5, 2), -1, np.float32), *ROWS[d]]),
         "loop": (LOOP.replace("[N]", "[37]"), lambda d: [np.linspace(d, d + 1, 37, dtype=np.float32)]),
         "large": (LOOP.replace("[N]", "[40007]"), lambda d: [np.linspace(d, d + 1, 40007, dtype=np.float32)])}


def executables(text: str, count: int):
    module = parse_module(text)
    devices = simulated_devices(module, count)
    return devices, compile_for_devices(module, devices, "cpu")
