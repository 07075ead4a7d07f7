/* threads.c: communicator.h for the threads of one process.
 *
 * Devices leave the addresses of their arrays where the others see them. In all_reduce each member combines its share
 * of the elements and writes it to the results of all; elsewhere it copies what is for it. Small arrays are copied when
 * a collective starts (`staged`), so that devices meet once and not a second time before they go on. Permutes, sends
 * and receives wait for the one other device only.
 *
 * A device that waits looks a few times, gives up its core a few times, and then sleeps. It wakes at least every
 * HLOC_NAP_MILLISECONDS and fails if another device failed, or if it waits for one that has left, or if all wait for
 * each other. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "member_work.h"
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { HLOC_CHUNK = 64, HLOC_CHUNKS = 4096, HLOC_NAP_MILLISECONDS = 50, HLOC_LOOKS = 200, HLOC_YIELDS = 8 };
enum { HLOC_STAGED_BYTES = 1 << 16, HLOC_STAGED_WORK = 1 << 16 };

/* A number that only grows, modulo 2^32, and devices that sleep until it has enlarged. */
typedef struct { _Alignas(64) _Atomic uint32_t word; _Atomic uint32_t sleepers; } hloc_gate;

/* What a device has left at one collective: of its last two runs, at [times % 2], because a slow device may still read
 * what belongs to the one before. sent, taken: of messages from this device. arrived, passed: of a group whose first
 * member it is; the second ones are for leaving it. */
typedef struct {
  _Atomic uint32_t times;
  uint32_t received;
  const void **pointers[2];
  char *staged[2];
  const void **results; /* of a receive */
  size_t room[2], staged_room[2], results_room;
  int is_staged[2];
  hloc_gate sent, taken, passed[2];
  _Atomic uint32_t arrived[2];
} hloc_place;

typedef struct {
  hloc_communicator table; /* first: a communicator is the address of its member */
  struct hloc_devices *all;
  _Atomic(hloc_gate *) waits;
  _Atomic uint32_t target;
  _Atomic int left;
  uint32_t run;
  char message[512];
} hloc_member;

struct hloc_devices {
  int devices, looks;
  _Atomic int stopped;
  _Atomic uint32_t events;
  pthread_mutex_t lock;
  struct { char digest[80]; uint32_t run; } programs[2]; /* of the last two runs */
  _Atomic(hloc_place *) chunks[HLOC_CHUNKS];
  hloc_member members[];
};

static hloc_place *place_of(hloc_devices *all, const hloc_collective *what, int device) {
  hloc_place *chunk = atomic_load_explicit(&all->chunks[what->number / HLOC_CHUNK], memory_order_acquire);
  return chunk + (size_t)(what->number % HLOC_CHUNK) * (size_t)all->devices + device;
}

/* -- waiting -- */

static int has_reached(hloc_gate *gate, uint32_t target) {
  return (int32_t)(atomic_load_explicit(&gate->word, memory_order_acquire) - target) >= 0;
}

static void advance(hloc_devices *all, hloc_gate *gate, uint32_t to) {
  atomic_fetch_add_explicit(&all->events, 1, memory_order_relaxed);
  atomic_store(&gate->word, to);
#if defined(__linux__)
  if (atomic_load(&gate->sleepers)) syscall(SYS_futex, &gate->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#endif
}

static void nap(hloc_gate *gate, uint32_t seen) {
#if defined(__linux__)
  const struct timespec most = {0, HLOC_NAP_MILLISECONDS * 1000000L};
  syscall(SYS_futex, &gate->word, FUTEX_WAIT_PRIVATE, seen, &most, NULL, 0);
#else
  (void)gate, (void)seen;
  nanosleep(&(struct timespec){0, 50000}, NULL);
#endif
}

static void relax_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

/* Whether no device that has not left can go on: each waits, and nothing happens meanwhile. */
static int all_wait(hloc_devices *all) {
  const uint32_t events = atomic_load(&all->events);
  for (int d = 0; d < all->devices; d++) {
    hloc_member *other = &all->members[d];
    hloc_gate *gate = atomic_load(&other->waits);
    if (atomic_load(&other->left)) continue;
    if (!gate || has_reached(gate, atomic_load(&other->target))) return 0;
  }
  return atomic_load(&all->events) == events;
}

/* Notes for whom this device has waited in vain: the members that have begun the collective less often. */
static int do_not_come(hloc_member *self, const hloc_collective *what, const int32_t *members, int count,
                       uint32_t times) {
  char *text = self->message;
  const size_t room = sizeof self->message;
  int at = snprintf(text, room, "%s waits for the devices [", what->name);
  const char *comma = "";
  for (int m = 0; m < count && (size_t)at < room; m++) {
    if ((int32_t)(atomic_load(&place_of(self->all, what, members[m])->times) - times) >= 0) continue;
    at += snprintf(text + at, room - (size_t)at, "%s%d", comma, (int)members[m]);
    comma = ", ";
  }
  if ((size_t)at < room) snprintf(text + at, room - (size_t)at, "], which do not come");
  return HLOC_DEVICES_FAIL;
}

static int is_missing(hloc_devices *all, const hloc_collective *what, const int32_t *members, int count,
                      uint32_t times) {
  for (int m = 0; m < count; m++)
    if (atomic_load(&all->members[members[m]].left) &&
        (int32_t)(atomic_load(&place_of(all, what, members[m])->times) - times) < 0)
      return 1;
  return 0;
}

/* Waits until the gate has enlarged to `target`: when the members have begun the collective `times` times. */
static int await(hloc_member *self, hloc_gate *gate, uint32_t target, const hloc_collective *what,
                 const int32_t *members, int count, uint32_t times) {
  hloc_devices *all = self->all;
  for (int i = 0; i < all->looks; i++) {
    if (has_reached(gate, target)) return 0;
    relax_core();
  }
  for (int i = 0; i < HLOC_YIELDS; i++) {
    if (has_reached(gate, target)) return 0;
    sched_yield();
  }
  atomic_store(&self->target, target);
  atomic_store(&self->waits, gate);
  int error = 0;
  while (!has_reached(gate, target)) {
    if (atomic_load(&all->stopped)) {
      snprintf(self->message, sizeof self->message, "%s does not end: another device has failed", what->name);
      error = HLOC_OTHERS_FAIL;
      break;
    }
    if (is_missing(all, what, members, count, times) || all_wait(all)) {
      if (has_reached(gate, target)) break;
      error = do_not_come(self, what, members, count, times);
      break;
    }
    atomic_fetch_add(&gate->sleepers, 1);
    const uint32_t seen = atomic_load(&gate->word);
    if ((int32_t)(seen - target) < 0) nap(gate, seen);
    atomic_fetch_sub(&gate->sleepers, 1);
  }
  atomic_store(&self->waits, NULL);
  return error;
}

/* -- meeting of a group: phase 0 when all arrays are there, phase 1 when none is read any more -- */

static void arrive(hloc_devices *all, const hloc_collective *what, const int32_t *members, int count, uint32_t times,
                   int phase) {
  hloc_place *first = place_of(all, what, members[0]);
  if (atomic_fetch_add(&first->arrived[phase], 1) + 1 != (uint32_t)count) return;
  atomic_store(&first->arrived[phase], 0);
  advance(all, &first->passed[phase], times);
}

static int meet(hloc_member *self, const hloc_collective *what, const int32_t *members, int count, uint32_t times,
                int phase) {
  return await(self, &place_of(self->all, what, members[0])->passed[phase], times, what, members, count, times);
}

static int leave_group(hloc_member *self, const hloc_collective *what, const int32_t *members, int count,
                       uint32_t times) {
  arrive(self->all, what, members, count, times, 1);
  return meet(self, what, members, count, times, 1);
}

/* -- leaving addresses, or copies -- */

static void *enlarged(void *block, size_t *room, size_t bytes) {
  if (*room >= bytes) return block;
  free(block);
  block = malloc(bytes);
  *room = block ? bytes : 0;
  return block;
}

static int no_memory(hloc_member *self, const hloc_collective *what) {
  snprintf(self->message, sizeof self->message, "out of memory at %s", what->name);
  return HLOC_DEVICES_FAIL;
}

/* Leaves `given` operands, of which the first `copied` of so many bytes are copied, and `made` results. */
static int leave(hloc_member *self, const hloc_collective *what, const void *const *in, int given, void *const *out,
                 int made, const int64_t *bytes, int copied) {
  hloc_place *place = place_of(self->all, what, self->table.device);
  const uint32_t times = atomic_load(&place->times) + 1;
  const int side = (int)(times % 2);
  size_t total = 64;
  for (int a = 0; a < copied; a++) total += (size_t)bytes[a];
  place->pointers[side] = enlarged((void *)place->pointers[side], &place->room[side],
                                (size_t)(given + made + 1) * sizeof(void *));
  if (copied) place->staged[side] = enlarged(place->staged[side], &place->staged_room[side], total);
  if (!place->pointers[side] || (copied && !place->staged[side])) return no_memory(self, what);
  char *at = place->staged[side];
  for (int a = 0; a < given; a++) {
    place->pointers[side][a] = in[a];
    if (a >= copied) continue;
    memcpy(at, in[a], (size_t)bytes[a]);
    place->pointers[side][a] = at;
    at += bytes[a];
  }
  for (int a = 0; a < made; a++) place->pointers[side][given + a] = out[a];
  place->is_staged[side] = copied > 0;
  atomic_store(&place->times, times);
  return 0;
}

/* Begins a meeting of the group; NULL in *members: this device has none. */
static int begin_meeting(hloc_member *self, const hloc_collective *what, const void *const *in, int given,
                         void *const *out, int made, const int64_t *bytes, int copied) {
  int count = 0, own = 0;
  const int32_t *members = hloc_members(what, self->table.device, &count, &own);
  const int error = leave(self, what, in, given, out, made, bytes, copied);
  if (error || !members) return error;
  arrive(self->all, what, members, count, atomic_load(&place_of(self->all, what, self->table.device)->times), 0);
  return 0;
}

static hloc_member *member_of(hloc_communicator *self) { return (hloc_member *)self; }

/* -- the collectives -- */

/* Starts one whose operands are so many bytes each. */
static int start_arrays(hloc_member *self, const hloc_collective *what, const void *const *in, void *const *out,
                        int64_t (*size)(const hloc_block *), int64_t most) {
  int64_t bytes[what->count + 1], total = 0;
  for (int a = 0; a < what->count; a++) total += bytes[a] = size(&what->blocks[a]);
  return begin_meeting(self, what, in, what->count, out, what->count, bytes, total <= most ? what->count : 0);
}

static int64_t all_blocks(const hloc_block *block) { return block->rows * block->stride; }

static int group_size(const hloc_collective *what, int device) {
  int count = 1, own;
  hloc_members(what, device, &count, &own);
  return count;
}

static int start_all_reduce(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                            void *const *out) {
  return start_arrays(member_of(self), what, in, out, whole, HLOC_STAGED_WORK / group_size(what, self->device));
}
static int start_reduce_scatter(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                                void *const *out) {
  return start_arrays(member_of(self), what, in, out, all_blocks, HLOC_STAGED_BYTES);
}
static int start_copied(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                        void *const *out) {
  return start_arrays(member_of(self), what, in, out, whole, HLOC_STAGED_BYTES);
}

/* Blocks of operands that lie apart are packed when they are copied: then their runs follow each other. */
static int start_all_to_all(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                            void *const *out) {
  hloc_member *own = member_of(self);
  const hloc_block *block = what->blocks;
  const int count = group_size(what, self->device);
  int64_t bytes[count];
  const int copies = block->stride == block->run && whole(block) * count <= HLOC_STAGED_BYTES;
  for (int j = 0; j < count; j++) bytes[j] = whole(block);
  return begin_meeting(own, what, in, count, out, count, bytes, copies ? count : 0);
}

static int start_ragged(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                        void *const *out) {
  memcpy(out[0], in[1], (size_t)whole(&what->blocks[1]));
  return begin_meeting(member_of(self), what, in, 6, out, 1, NULL, 0);
}

/* Rows from all members; 0, or an error where they are not there, or have no place. */
static int take_rows(hloc_member *self, const hloc_collective *what, const void ***held, int count, int own) {
  const hloc_block *from = &what->blocks[0], *to = &what->blocks[1], *vector = &what->blocks[2];
  const int64_t each = vector->rows / count;
  for (int m = 0; m < count; m++) {
    for (int64_t k = own * each; k < (own + 1) * each; k++) {
      const int64_t start = hloc_integer(vector, held[m][2], k), rows = hloc_integer(vector, held[m][3], k);
      const int64_t place = hloc_integer(vector, held[m][4], k);
      if (!hloc_rows_fit(start, rows, from->rows) || !hloc_rows_fit(place, rows, to->rows)) {
        snprintf(self->message, sizeof self->message,
                 "%s: %lld rows from row %lld of %lld, to row %lld of %lld, are not there", what->name, (long long)rows,
                 (long long)start, (long long)from->rows, (long long)place, (long long)to->rows);
        return HLOC_DEVICES_FAIL;
      }
      memcpy((char *)held[own][6] + place * to->run, (const char *)held[m][0] + start * from->run,
             (size_t)(rows * from->run));
    }
  }
  return 0;
}

static void fill_with_zeros(const hloc_collective *what, const void **pointers) {
  for (int a = 0; a < what->count; a++) memset((void *)pointers[a], 0, (size_t)whole(&what->blocks[a]));
}

/* After all members have begun. */
static int finish_meeting(hloc_member *self, const hloc_collective *what) {
  int count = 0, own = 0, error, is_staged = 1;
  const int32_t *members = hloc_members(what, self->table.device, &count, &own);
  hloc_place *place = place_of(self->all, what, self->table.device);
  const uint32_t times = atomic_load(&place->times);
  if (!members) {
    if (what->kind == HLOC_BROADCAST) fill_with_zeros(what, place->pointers[times % 2] + what->count);
    return 0;
  }
  if ((error = meet(self, what, members, count, times, 0))) return error;
  const void **held[count];
  for (int m = 0; m < count; m++) {
    hloc_place *other = place_of(self->all, what, members[m]);
    held[m] = other->pointers[times % 2];
    is_staged &= other->is_staged[times % 2];
  }
  switch (what->kind) {
    case HLOC_ALL_REDUCE: (is_staged ? reduce_all : reduce_share)(what, held, count, own); break;
    case HLOC_REDUCE_SCATTER: reduce_blocks(what, held, count, own); break;
    case HLOC_ALL_GATHER: gather_blocks(what, held, count, own); break;
    case HLOC_ALL_TO_ALL: exchange_blocks(what, held, count, own); break;
    case HLOC_BROADCAST: take_first(what, held, count, own); break;
    default: error = take_rows(self, what, held, count, own); break;
  }
  return error || is_staged ? error : leave_group(self, what, members, count, times);
}

/* -- messages -- */

/* Leaves a message to the target, if there is one: copied, or where it is until the target has taken it. */
static int give(hloc_member *self, const hloc_collective *what, const void *const *in, void *const *out, int made,
                int copies) {
  hloc_place *place = place_of(self->all, what, self->table.device);
  const int32_t target = hloc_target_of(what, self->table.device);
  int64_t bytes[what->count + 1], total = 0;
  for (int a = 0; a < what->count; a++) total += bytes[a] = whole(&what->blocks[a]);
  copies |= total <= HLOC_STAGED_BYTES;
  const uint32_t times = atomic_load(&place->times) + 1;
  int error = target < 0 ? 0 : await(self, &place->taken, times - 2, what, &target, 1, times - 2);
  if (!error) error = leave(self, what, in, target < 0 ? 0 : what->count, out, made, bytes,
                            target >= 0 && copies ? what->count : 0);
  if (!error && target >= 0) advance(self->all, &place->sent, times);
  return error;
}

/* Copies the next message of the source, or zeros. */
static int take(hloc_member *self, const hloc_collective *what, const void **results) {
  const int32_t source = hloc_source_of(what, self->table.device);
  if (source < 0) {
    fill_with_zeros(what, results);
    return 0;
  }
  const uint32_t times = ++place_of(self->all, what, self->table.device)->received;
  hloc_place *from = place_of(self->all, what, source);
  const int error = await(self, &from->sent, times, what, &source, 1, times);
  if (error) return error;
  for (int a = 0; a < what->count; a++)
    memcpy((void *)results[a], from->pointers[times % 2][a], (size_t)whole(&what->blocks[a]));
  advance(self->all, &from->taken, times);
  return 0;
}

static int start_permute(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                         void *const *out) {
  return give(member_of(self), what, in, out, what->count, 0);
}
static int start_send(hloc_communicator *self, const hloc_collective *what, const void *const *in, void *const *out) {
  (void)out;
  return give(member_of(self), what, in, NULL, 0, 1);
}

static int finish_permute(hloc_member *self, const hloc_collective *what) {
  hloc_place *place = place_of(self->all, what, self->table.device);
  const int32_t target = hloc_target_of(what, self->table.device);
  const uint32_t times = atomic_load(&place->times);
  const int side = (int)(times % 2);
  const int error = take(self, what, place->pointers[side] + (target < 0 ? 0 : what->count));
  if (error || target < 0 || place->is_staged[side]) return error;
  return await(self, &place->taken, times, what, &target, 1, times);
}

/* A receive begins when its result is wanted; where that lies is kept until then. */
static int start_recv(hloc_communicator *self, const hloc_collective *what, const void *const *in, void *const *out) {
  (void)in;
  hloc_place *place = place_of(member_of(self)->all, what, self->device);
  place->results = enlarged((void *)place->results, &place->results_room, (size_t)what->count * sizeof(void *));
  if (!place->results) return no_memory(member_of(self), what);
  for (int a = 0; a < what->count; a++) place->results[a] = out[a];
  return 0;
}

static int done(hloc_communicator *self, const hloc_collective *what) {
  hloc_member *own = member_of(self);
  switch (what->kind) {
    case HLOC_SEND: return 0;
    case HLOC_RECV: return take(own, what, place_of(own->all, what, self->device)->results);
    case HLOC_PERMUTE: return finish_permute(own, what);
    default: return finish_meeting(own, what);
  }
}

/* -- the whole -- */

static int has_places(hloc_devices *all, int32_t collectives) {
  for (int c = 0; c * HLOC_CHUNK < collectives; c++) {
    if (atomic_load(&all->chunks[c])) continue;
    const size_t bytes = sizeof(hloc_place) * HLOC_CHUNK * (size_t)all->devices;
    void *chunk;
    if (posix_memalign(&chunk, 64, bytes)) return 0;
    memset(chunk, 0, bytes);
    atomic_store(&all->chunks[c], chunk);
  }
  return 1;
}

static int begin(hloc_communicator *self, const char *digest, int32_t collectives) {
  hloc_member *own = member_of(self);
  hloc_devices *all = own->all;
  const char *wrong = NULL;
  const int stopped = atomic_load(&all->stopped);
  if (stopped) wrong = "another device has failed";
  pthread_mutex_lock(&all->lock);
  const uint32_t run = ++own->run, seen = all->programs[run % 2].run;
  char *first = all->programs[run % 2].digest;
  if (run > seen) {
    all->programs[run % 2].run = run;
    snprintf(first, sizeof all->programs[0].digest, "%s", digest);
  }
  if (run >= seen && strncmp(first, digest, sizeof all->programs[0].digest - 1))
    wrong = "the devices have different programs";
  else if (collectives > HLOC_CHUNK * HLOC_CHUNKS) wrong = "a program has too many collectives";
  else if (!has_places(all, collectives)) wrong = "out of memory for collectives";
  pthread_mutex_unlock(&all->lock);
  if (wrong) snprintf(own->message, sizeof own->message, "%s", wrong);
  return stopped ? HLOC_OTHERS_FAIL : wrong ? HLOC_DEVICES_FAIL : 0;
}

static void failed(hloc_communicator *self) { hloc_devices_stop(member_of(self)->all); }
static const char *message(hloc_communicator *self) { return member_of(self)->message; }

static int cores(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
  return 1;
}

hloc_devices *hloc_devices_new(int devices) {
  hloc_devices *all = calloc(1, sizeof *all + (size_t)devices * sizeof(hloc_member));
  if (!all) return NULL;
  all->devices = devices;
  all->looks = devices <= cores() ? HLOC_LOOKS : 0;
  pthread_mutex_init(&all->lock, NULL);
  for (int d = 0; d < devices; d++) {
    all->members[d].all = all;
    all->members[d].table = (hloc_communicator){
        HLOC_COMMUNICATOR_VERSION, d, devices, start_all_reduce, start_reduce_scatter, start_copied, start_all_to_all,
        start_copied, start_permute, start_send, start_recv, start_ragged, done, begin, failed, message};
  }
  return all;
}

static hloc_place *next_place(hloc_devices *all, size_t *at) {
  const size_t each = HLOC_CHUNK * (size_t)all->devices;
  for (; *at < each * HLOC_CHUNKS; *at += each - *at % each) {
    hloc_place *chunk = atomic_load(&all->chunks[*at / each]);
    if (chunk) return &chunk[(*at)++ % each];
  }
  return NULL;
}

void hloc_devices_free(hloc_devices *all) {
  size_t at = 0;
  for (hloc_place *place; all && (place = next_place(all, &at));) {
    free((void *)place->results);
    for (int side = 0; side < 2; side++) free((void *)place->pointers[side]), free(place->staged[side]);
  }
  for (int c = 0; all && c < HLOC_CHUNKS; c++) free(atomic_load(&all->chunks[c]));
  free(all);
}

hloc_communicator *hloc_devices_of(hloc_devices *all, int device) { return &all->members[device].table; }

void hloc_devices_reset(hloc_devices *all) {
  size_t at = 0;
  for (hloc_place *place; (place = next_place(all, &at));) {
    hloc_gate *gates[] = {&place->sent, &place->taken, &place->passed[0], &place->passed[1]};
    for (int g = 0; g < 4; g++) atomic_store(&gates[g]->word, 0);
    for (int phase = 0; phase < 2; phase++) atomic_store(&place->arrived[phase], 0);
    atomic_store(&place->times, 0);
    place->received = 0;
  }
  for (int d = 0; d < all->devices; d++) {
    atomic_store(&all->members[d].left, 0);
    all->members[d].run = 0;
  }
  memset(all->programs, 0, sizeof all->programs);
  atomic_store(&all->stopped, 0);
}

/* For communicators that are not in C. */
void hloc_combine_parts(const hloc_block *block, int count, const void *const *parts, int64_t n, void *out) {
  hloc_combine(block, count, parts, 0, n, out);
}

void hloc_devices_leave(hloc_devices *all, int device) { atomic_store(&all->members[device].left, 1); }
void hloc_devices_stop(hloc_devices *all) { atomic_store(&all->stopped, 1); }
