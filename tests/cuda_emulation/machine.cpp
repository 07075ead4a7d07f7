/* machine.cpp: threads as fibers, barriers, exchanges in a warp, launches. */
#include "machine.h"
#include <sys/mman.h>

extern "C" __attribute__((weak)) char __start_hloc_shared[], __stop_hloc_shared[];
extern "C" { __attribute__((visibility("default"))) int emulation_backwards = 0; }

namespace emulation {

constexpr size_t STACK = 256 << 10;
alignas(1024) unsigned char dynamic_shared[MOST_DYNAMIC];
unsigned dynamic_bytes;
Block block;
Running *current;
uint3 block_index, block_size, grid_size;

#if defined(__x86_64__)
/* Save what a call preserves, exchange stacks, restore. */
extern "C" void emulation_switch(void **save, void *other);
asm(".text\n.local emulation_switch\n.type emulation_switch,@function\nemulation_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
__attribute__((noinline)) void leave() { emulation_switch(&running().stack_pointer, block.scheduler); }
static void enter(Thread &thread) { emulation_switch(&block.scheduler, thread.stack_pointer); }
#else
__attribute__((noinline)) void leave() { swapcontext(&running().context, &block.scheduler_context); }
static void enter(Thread &thread) { swapcontext(&block.scheduler_context, &thread.context); }
#endif

/* What the checker needs to know: who runs, and how many barriers lie behind. */
static void show_checker(Thread *thread) {
#ifdef EMULATION_CHECKED
  emulation_thread = thread ? &thread->checked : nullptr;
#else
  (void)thread;
#endif
}

static void run_thread() {
  block.kernel(block.arguments);
#ifdef EMULATION_CHECKED
  emulation_end_thread();
#endif
  running().state = FINISHED;
  leave();
}

static void prepare_stack(Thread &thread, char *stack) {
#if defined(__x86_64__)
  void **top = reinterpret_cast<void **>(stack + STACK - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(run_thread);
  thread.stack_pointer = top - 6;
#else
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = stack;
  thread.context.uc_stack.ss_size = STACK;
  makecontext(&thread.context, run_thread, 0);
#endif
}

void release(Thread &thread) {
  thread.state = READY;
  block.ready.push_back(&thread);
}

static void release_warp(Warp &warp) {
  if (warp.arrived < warp.alive || warp.arrived == 0) return;
  warp.arrived = 0;
  size_t first = 32 * (&warp - block.warps.data());
  for (size_t i = first; i < first + 32 && i < block.threads.size(); i++)
    if (block.threads[i].state == AT_WARP_BARRIER) release(block.threads[i]);
}

static void release_block() {
  if (block.arrived < block.alive || block.arrived == 0) return;
  block.arrived = 0;
  share_seen();
  for (Thread &thread : block.threads)
    if (thread.state == AT_BLOCK_BARRIER) release(thread);
}

void warp_barrier() {
  running().state = AT_WARP_BARRIER;
  current->warp->arrived++;
  release_warp(*current->warp);
  leave();
}

void block_barrier() {
#ifdef EMULATION_CHECKED
  running().checked.barriers++;
#endif
  running().state = AT_BLOCK_BARRIER;
  block.arrived++;
  release_block();
  leave();
}

static bool run_block(char *stacks) {
  size_t count = block.threads.size();
  std::memset(__start_hloc_shared, 0xff, __stop_hloc_shared - __start_hloc_shared);
  std::memset(dynamic_shared, 0xff, dynamic_bytes);
  forget_barriers();
  std::memset(block.warps.data(), 0xff, block.warps.size() * sizeof(Warp));
  for (Warp &warp : block.warps) warp.alive = warp.arrived = 0;
  for (Group128 &group : block.groups) group = Group128();
  for (Named &barrier : block.named) barrier = Named();
  block.alive = count, block.arrived = 0;
  block.any[0] = block.any[1] = block.any[2] = false;
  block.ready.clear();
  for (size_t i = 0; i < count; i++) {
    Thread &thread = block.threads[i];
    unsigned x = i % block_size.x, y = i / block_size.x % block_size.y, z = i / block_size.x / block_size.y;
    thread = Thread();
    thread.index = {x, y, z}, thread.lane = i % 32, thread.warp = &block.warps[i / 32];
    thread.warp->alive++;
    prepare_stack(thread, stacks + i * STACK);
#ifdef EMULATION_CHECKED
    const unsigned number = (block_index.z * grid_size.y + block_index.y) * grid_size.x + block_index.x;
    thread.checked = {number, unsigned(i), unsigned(i / 32), 0, 0, {}, nullptr, 0, 0, false};
#endif
  }
#ifdef EMULATION_CHECKED
  emulation_shared = __start_hloc_shared, emulation_shared_end = __stop_hloc_shared;
  emulation_dynamic = (char *)dynamic_shared, emulation_dynamic_end = emulation_dynamic + dynamic_bytes;
  emulation_stacks = stacks, emulation_stacks_end = stacks + 1024 * STACK;
  emulation_new_block();
#endif
  for (size_t i = 0; i < count; i++) release(block.threads[emulation_backwards ? count - 1 - i : i]);
  while (!block.ready.empty()) {
    Thread &next = *block.ready.front();
    block.ready.pop_front();
    current = &next;
    show_checker(&next);
    enter(next);
    show_checker(nullptr);
    if (next.state != FINISHED) continue;
    block.alive--;
    next.warp->alive--;
    release_warp(*next.warp);
    release_block();
  }
  return block.alive == 0 && !is_left();
}

int launch(void (*kernel)(void *const *), void *const *arguments, const unsigned *grid, const unsigned *size,
                  unsigned shared) {
  static char *stacks = static_cast<char *>(mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t count = size_t(size[0]) * size[1] * size[2];
  if (count == 0 || count > 1024 || shared > MOST_DYNAMIC) return 2;
  dynamic_bytes = shared;
  block.kernel = kernel, block.arguments = arguments;
  block_size = {size[0], size[1], size[2]}, grid_size = {grid[0], grid[1], grid[2]};
  block.threads.resize(count), block.warps.resize((count + 31) / 32);
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        block_index = {x, y, z};
        if (!run_block(stacks)) return 1;
      }
#ifdef EMULATION_CHECKED
  emulation_end_launch();
#endif
  return 0;
}

}  // namespace emulation

/* A barrier that tells whether any thread says yes. Flags take turns: a thread that is early sets the next one. */
int __syncthreads_or(int yes) {
  using namespace emulation;
  const unsigned turn = running().any_turn++ % 3;
  block.any[turn] |= yes != 0;
  block_barrier();
  block.any[(turn + 2) % 3] = false;
  return block.any[turn];
}
void __syncwarp(unsigned) {
#ifdef EMULATION_CHECKED
  emulation::running().checked.warp_barriers++;
#endif
  emulation::warp_barrier();
}

unsigned __ballot_sync(unsigned, bool yes) {
  const unsigned char *slots = emulation::exchange(unsigned(yes));
  unsigned all = 0;
  for (unsigned lane = 0; lane < emulation::current->warp->alive; lane++) all |= emulation::shown_by<unsigned>(slots, lane) << lane;
  return all;
}
