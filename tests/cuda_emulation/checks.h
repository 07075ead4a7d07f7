/* checks.h: what the emulation and its checker know of the running kernel. The checker sees every access that a kernel
 * makes to memory (g++ -fsanitize=thread,alignment calls it) and tells the first one that is wrong.
 *
 * emulation_pieces   memory that the driver gave out: its bytes, the guards around it, and which bytes were written (1), by
 *                    kernels or within graphs (2)
 * emulation_spans    what this launch may touch: one span per argument; none: all pieces
 * emulation_early    whether the launch may overlap the kernel before it, until it has waited for it
 * emulation_fault    the first wrong access, in words; empty where there was none
 */
#pragma once
#include <cstddef>

struct EmulationPiece { char *start; size_t size, guard; unsigned char *written; };
struct EmulationSpan { char *start; size_t size; };
struct EmulationMoment { unsigned thread, warp, barriers, warp_barriers, when; };
struct EmulationThread {
  unsigned block, thread, warp, barriers, warp_barriers;
  EmulationMoment fence;                      /* its last __threadfence(); when = 0: none */
  unsigned *counter; size_t arrivals;         /* the counter that it was at since then, and the arrivals there so far */
  unsigned epoch;                             /* the number of its last accesses (checks.cpp); 0: none since its fence */
  bool waited;                                /* for the kernel before this one */
};

extern "C" {
extern EmulationThread *emulation_thread;     /* null outside of kernels */
extern char *emulation_shared, *emulation_shared_end, *emulation_stacks, *emulation_stacks_end;
extern char *emulation_dynamic, *emulation_dynamic_end;         /* shared memory that the launch asked for */
void emulation_new_block();
void emulation_tell(const char *what);                          /* something else is wrong */
void emulation_unwritten(char *at, size_t size);                /* a copy to shared memory begins: no value until it ends */
void emulation_leaves(char *at, size_t size);                   /* a bulk copy begins: likewise; engines.cpp knows who may read */
void emulation_arrived(char *at, size_t size);                  /* it has arrived */
void emulation_look(const void *at, size_t size);               /* what it reads */
void emulation_fence();                                         /* __threadfence() */
void emulation_arrive(unsigned *counter);                       /* an atomic operation at which blocks meet */
void emulation_await();                                         /* griddepcontrol.wait */
void emulation_end_thread();
void emulation_end_launch();
}
