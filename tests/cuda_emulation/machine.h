/* machine.h: what machine.cpp and engines.cpp share: the threads of the block that runs. */
#pragma once
#include "emulation.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#define UNCHECKED __attribute__((no_sanitize("thread", "alignment")))

namespace emulation {

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, AT_BARRIER, FINISHED };

/* A copy of 16 bytes on its way (cp.async): nothing has arrived before somebody waits for it. */
struct alignas(16) Sixteen { unsigned char bytes[16]; };
struct AsyncCopy { Sixteen *to; const Sixteen *from; };

struct Thread : Running {
  std::deque<std::vector<AsyncCopy>> copies;      // groups; the last one is still open
  std::deque<std::vector<GroupProduct>> products; // likewise
  bool unfenced;                                  // has written to shared memory what wgmma and bulk copies may not see yet
  std::vector<unsigned> seen;                     // of each barrier (mbarrier): phases whose end this thread knows of
  std::vector<const void *> known_maps;           // tensor maps that it has made known to itself
  void *stack_pointer;
  unsigned any_turn;
  State state;
#ifdef EMULATION_CHECKED
  EmulationThread checked;
#endif
#if !defined(__x86_64__)
  ucontext_t context;
#endif
};

struct Group128 {
  unsigned arrived, turn;
  bool any[2];
  std::vector<Thread *> waiting;
};

/* A named barrier (bar.sync, bar.arrive) of some threads of a block; threads: 0 before its first use. */
struct Named {
  unsigned threads, arrived;
  std::vector<Thread *> waiting;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Group128 groups[8];
  Named named[16];
  std::deque<Thread *> ready;
  unsigned alive, arrived;
  bool any[3];
  void (*kernel)(void *const *);
  void *const *arguments;
  void *scheduler;
#if !defined(__x86_64__)
  ucontext_t scheduler_context;
#endif
};

extern Block block;
inline Thread &running() { return *static_cast<Thread *>(current); }

void leave();                                    /* let another thread run, until this one is released */
void release(Thread &thread);
void share_seen();                               /* a barrier of the block: all know what one of them knows of mbarriers */
bool is_left();                                  /* a block has ended: some came to a named barrier, the others never did */
void forget_barriers();                          /* a new block has no mbarriers */

}  // namespace emulation
