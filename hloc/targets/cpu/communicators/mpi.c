/* mpi.c: communicator.h for the processes of an MPI job.
 *
 * An all-reduce exchanges shares of the elements, combines them and gathers the sums: as many bytes as MPI_Allreduce's,
 * and the same order on all devices. A small one gathers all operands. Other collectives pack their blocks, and are one
 * call of MPI each. A process that waits tests its request, gives up its core in between, and fails after a while. If a
 * run fails, end the job with MPI_Abort: others may wait for this process. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "mpi.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "group.h"

enum { HLOC_GATHERED_BYTES = 1 << 15, HLOC_MOST_TAGS = 32768, HLOC_DIGEST_BYTES = 64, HLOC_LOOKS_AT_ONCE = 64 };

/* A collective on its way: its arrays, and memory that it keeps. counts: bytes to and from each member, and where. */
typedef struct {
  const void **in;
  void **out;
  char *sent, *received;
  int *counts;
  size_t in_room, out_room, sent_room, received_room, counts_room;
  MPI_Request request;
} hloc_pending;

typedef struct { int32_t *members; int count; MPI_Comm own; } hloc_mpi_group;
typedef struct hloc_message { struct hloc_message *next; MPI_Request request; char bytes[]; } hloc_message;

typedef struct {
  hloc_communicator table; /* first */
  MPI_Comm world;
  double seconds;
  hloc_pending *pending;
  int32_t pending_count;
  hloc_mpi_group *groups;
  int group_count;
  hloc_message *messages;
  char digest[HLOC_DIGEST_BYTES + 1], message[512];
} hloc_mpi;

static hloc_mpi *mpi_of(hloc_communicator *self) { return (hloc_mpi *)self; }

static int fails(hloc_mpi *own, const hloc_collective *what, const char *why) {
  snprintf(own->message, sizeof own->message, "device %d, %s: %s", (int)own->table.device,
           what ? what->name : "the start of the program", why);
  return HLOC_DEVICES_FAIL;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int wait_for(hloc_mpi *own, const hloc_collective *what, MPI_Request *request) {
  const double start = now();
  for (int arrived = 0;;) {
    for (int i = 0; i < HLOC_LOOKS_AT_ONCE; i++) {
      if (MPI_Test(request, &arrived, MPI_STATUS_IGNORE)) return fails(own, what, "MPI reports an error");
      if (arrived) return 0;
      sched_yield();
    }
    if (now() - start > own->seconds) return fails(own, what, "has waited too long for the other devices");
  }
}

static int room_for(void *block, size_t *room, size_t bytes) {
  if (*room >= bytes && *(void **)block) return 1;
  free(*(void **)block);
  *(void **)block = malloc(bytes + 1);
  *room = *(void **)block ? bytes : 0;
  return *(void **)block != NULL;
}

/* The communicator of a group; made when it meets first. */
static int group_of(hloc_mpi *own, const int32_t *members, int count, MPI_Comm *found) {
  if (count == own->table.devices) {
    int is_whole = 1;
    for (int m = 0; m < count; m++) is_whole &= members[m] == m;
    *found = own->world;
    if (is_whole) return 1;
  }
  for (int g = 0; g < own->group_count; g++)
    if (own->groups[g].count == count && !memcmp(own->groups[g].members, members, sizeof(int32_t) * (size_t)count)) {
      *found = own->groups[g].own;
      return 1;
    }
  hloc_mpi_group *more = realloc(own->groups, sizeof *more * (size_t)(own->group_count + 1));
  int32_t *copy = malloc(sizeof(int32_t) * (size_t)count);
  if (more) own->groups = more;
  if (!more || !copy) return 0;
  memcpy(copy, members, sizeof(int32_t) * (size_t)count);
  MPI_Group all, some;
  MPI_Comm_group(own->world, &all);
  MPI_Group_incl(all, count, members, &some);
  const int failed = MPI_Comm_create_group(own->world, some, 0, found);
  MPI_Group_free(&all);
  MPI_Group_free(&some);
  if (failed) return 0;
  more[own->group_count++] = (hloc_mpi_group){copy, count, *found};
  return 1;
}

static int64_t whole(const hloc_block *block) { return block->rows * block->run; }
static int64_t total_of(const hloc_collective *what) {
  int64_t total = 0;
  for (int a = 0; a < what->count; a++) total += whole(&what->blocks[a]);
  return total;
}

/* -- packing ---------------------------------------------------------------------------------------------------- */

static void pack_arrays(const hloc_collective *what, const void *const *in, char *to) {
  for (int a = 0; a < what->count; to += whole(&what->blocks[a]), a++)
    memcpy(to, in[a], (size_t)whole(&what->blocks[a]));
}
static void unpack_arrays(const hloc_collective *what, const char *from, void *const *out) {
  for (int a = 0; a < what->count; from += whole(&what->blocks[a]), a++)
    memcpy(out[a], from, (size_t)whole(&what->blocks[a]));
}

/* Where the share of a member of an array begins, in bytes. */
static int64_t share_at(const hloc_block *block, int member, int count) {
  return hloc_share(whole(block) / block->element, member, count) * block->element;
}

/* Bytes of the shares of each member of all arrays, to counts[m], and where they begin, to counts[count + m]. */
static void count_shares(const hloc_collective *what, int count, int *counts) {
  int place = 0;
  for (int m = 0; m < count; m++) {
    counts[m] = 0;
    for (int a = 0; a < what->count; a++)
      counts[m] += (int)(share_at(&what->blocks[a], m + 1, count) - share_at(&what->blocks[a], m, count));
    counts[count + m] = place;
    place += counts[m];
  }
}

static void copy_shares(const hloc_collective *what, int count, char *packed, void *const *arrays, int unpacks) {
  for (int m = 0; m < count; m++)
    for (int a = 0; a < what->count; a++) {
      const int64_t at = share_at(&what->blocks[a], m, count), size = share_at(&what->blocks[a], m + 1, count) - at;
      char *array = (char *)arrays[a] + at;
      memcpy(unpacks ? array : packed, unpacks ? packed : array, (size_t)size);
      packed += size;
    }
}

/* -- starting --------------------------------------------------------------------------------------------------- */

typedef struct { hloc_mpi *own; hloc_pending *pending; MPI_Comm group; int count, place; } hloc_meeting;

/* Keeps the arrays, and makes room. Returns 0; `meeting->count` is 0 for a device without a group. */
static int meet(hloc_communicator *self, const hloc_collective *what, const void *const *in, int given,
                void *const *out, int made, int64_t sent, int64_t received, hloc_meeting *meeting) {
  hloc_mpi *own = mpi_of(self);
  hloc_pending *pending = &own->pending[what->number];
  const int32_t *members = hloc_members(what, self->device, &meeting->count, &meeting->place);
  if (!members) meeting->count = 0;
  meeting->own = own;
  meeting->pending = pending;
  pending->request = MPI_REQUEST_NULL;
  const int64_t n = meeting->count ? meeting->count : 1;
  if (sent * n > INT32_MAX || received * n > INT32_MAX) return fails(own, what, "its arrays are too large for MPI");
  if (!room_for(&pending->in, &pending->in_room, sizeof(void *) * (size_t)given) ||
      !room_for(&pending->out, &pending->out_room, sizeof(void *) * (size_t)made) ||
      !room_for(&pending->sent, &pending->sent_room, (size_t)(sent * n)) ||
      !room_for(&pending->received, &pending->received_room, (size_t)(received * n)) ||
      !room_for(&pending->counts, &pending->counts_room, sizeof(int) * 4 * (size_t)n) ||
      (members && !group_of(own, members, meeting->count, &meeting->group)))
    return fails(own, what, "there is no memory, or MPI makes no group");
  for (int a = 0; a < given; a++) pending->in[a] = in[a];
  for (int a = 0; a < made; a++) pending->out[a] = out[a];
  return 0;
}

static int started(hloc_meeting *m, const hloc_collective *what, int error) {
  return error ? fails(m->own, what, "MPI reports an error") : 0;
}

/* Starts to hand the operands of all members, `total` bytes each, to all. */
static int gather(hloc_meeting *m, const hloc_collective *what, const void *const *in, int total) {
  hloc_pending *p = m->pending;
  pack_arrays(what, in, p->sent);
  return started(m, what, MPI_Iallgather(p->sent, total, MPI_BYTE, p->received, total, MPI_BYTE, m->group,
                                         &p->request));
}

static int start_all_reduce(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                            void *const *out) {
  hloc_meeting m = {0};
  const int64_t total = total_of(what);
  int error = meet(self, what, in, what->count, out, what->count, total, total, &m);
  if (error || !m.count) return error;
  hloc_pending *p = m.pending;
  if (total <= HLOC_GATHERED_BYTES) return gather(&m, what, in, (int)total);
  count_shares(what, m.count, p->counts);
  for (int k = 0; k < m.count; k++) {
    p->counts[2 * m.count + k] = p->counts[m.place];
    p->counts[3 * m.count + k] = p->counts[m.place] * k;
  }
  if (what->count > 1) copy_shares(what, m.count, p->sent, (void *const *)p->in, 0);
  return started(&m, what, MPI_Ialltoallv(what->count > 1 ? p->sent : in[0], p->counts, p->counts + m.count, MPI_BYTE,
                                          p->received, p->counts + 2 * m.count, p->counts + 3 * m.count, MPI_BYTE,
                                          m.group, &p->request));
}

static int start_reduce_scatter(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                                void *const *out) {
  hloc_meeting m = {0};
  const int64_t total = total_of(what);
  int error = meet(self, what, in, what->count, out, what->count, total, total, &m);
  if (error || !m.count) return error;
  char *to = m.pending->sent;
  for (int k = 0; k < m.count; k++)
    for (int a = 0; a < what->count; to += whole(&what->blocks[a]), a++) {
      const hloc_block *block = &what->blocks[a];
      hloc_copy_runs(to, block->run, (const char *)in[a] + k * block->run, block->stride, block->rows, block->run);
    }
  return started(&m, what, MPI_Ialltoall(m.pending->sent, (int)total, MPI_BYTE, m.pending->received, (int)total,
                                         MPI_BYTE, m.group, &m.pending->request));
}

static int start_all_gather(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                            void *const *out) {
  hloc_meeting m = {0};
  const int64_t total = total_of(what);
  int error = meet(self, what, in, what->count, out, what->count, total, total, &m);
  return error || !m.count ? error : gather(&m, what, in, (int)total);
}

static int start_all_to_all(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                            void *const *out) {
  hloc_meeting m = {0};
  const hloc_block *block = what->blocks;
  int count = 0, place;
  hloc_members(what, self->device, &count, &place);
  int error = meet(self, what, in, count, out, count, whole(block), whole(block), &m);
  if (error || !m.count) return error;
  for (int k = 0; k < m.count; k++)
    hloc_copy_runs(m.pending->sent + k * whole(block), block->run, in[k], block->stride, block->rows, block->run);
  return started(&m, what, MPI_Ialltoall(m.pending->sent, (int)whole(block), MPI_BYTE, m.pending->received,
                                         (int)whole(block), MPI_BYTE, m.group, &m.pending->request));
}

static int start_broadcast(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                           void *const *out) {
  hloc_meeting m = {0};
  const int64_t total = total_of(what);
  int error = meet(self, what, in, what->count, out, what->count, total, 0, &m);
  if (error) return error;
  memset(m.pending->sent, 0, (size_t)total);
  if (m.count && !m.place) pack_arrays(what, in, m.pending->sent);
  if (!m.count) return 0;
  return started(&m, what, MPI_Ibcast(m.pending->sent, (int)total, MPI_BYTE, 0, m.group, &m.pending->request));
}

/* Messages are copied, so that the operand may change; the copies of those that have arrived are freed. */
static int start_send(hloc_communicator *self, const hloc_collective *what, const void *const *in, void *const *out) {
  hloc_mpi *own = mpi_of(self);
  const int target = hloc_target_of(what, self->device);
  const int64_t total = total_of(what);
  (void)out;
  for (hloc_message **at = &own->messages; *at;) {
    int arrived = 0;
    hloc_message *message = *at;
    if (MPI_Test(&message->request, &arrived, MPI_STATUS_IGNORE) || !arrived) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    free(message);
  }
  if (target < 0) return 0;
  if (total > INT32_MAX) return fails(own, what, "its arrays are too large for MPI");
  hloc_message *message = malloc(sizeof *message + (size_t)total);
  if (!message) return fails(own, what, "there is no memory");
  pack_arrays(what, in, message->bytes);
  message->next = own->messages;
  own->messages = message;
  if (MPI_Isend(message->bytes, (int)total, MPI_BYTE, target, what->number % HLOC_MOST_TAGS, own->world,
                &message->request))
    return fails(own, what, "MPI reports an error");
  return 0;
}

static int start_recv(hloc_communicator *self, const hloc_collective *what, const void *const *in, void *const *out) {
  hloc_meeting m = {0};
  const int source = hloc_source_of(what, self->device);
  const int64_t total = total_of(what);
  (void)in;
  int error = meet(self, what, NULL, 0, out, what->count, 0, total, &m);
  if (error) return error;
  memset(m.pending->received, 0, (size_t)total);
  if (source < 0) return 0;
  return started(&m, what, MPI_Irecv(m.pending->received, (int)total, MPI_BYTE, source, what->number % HLOC_MOST_TAGS,
                                     m.own->world, &m.pending->request));
}

static int start_permute(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                         void *const *out) {
  const int error = start_recv(self, what, in, out);
  return error ? error : start_send(self, what, in, out);
}

/* Counts and places are told first, then the rows go; all of it when it is started. */
static int start_ragged(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                        void *const *out) {
  const hloc_block *from = &what->blocks[0], *to = &what->blocks[1], *vector = &what->blocks[2];
  hloc_meeting m = {0};
  int count = 1, place;
  hloc_members(what, self->device, &count, &place);
  const int64_t each = vector->rows / count, told = 2 * each * (int64_t)sizeof(int64_t);
  int error = meet(self, what, in, 6, out, 1, told, told, &m);
  if (error || !m.count) return error;
  hloc_pending *p = m.pending;
  int64_t *tell = (int64_t *)p->sent, *heard = (int64_t *)p->received, sends = 0, takes = 0;
  int *counts = p->counts;
  memcpy(out[0], in[1], (size_t)whole(to));
  for (int64_t k = 0; k < vector->rows; k++) {
    const int64_t rows = hloc_integer(vector, in[3], k);
    if (!hloc_rows_fit(hloc_integer(vector, in[2], k), rows, from->rows))
      return fails(m.own, what, "rows that it sends are not there");
    tell[2 * k] = rows;
    tell[2 * k + 1] = hloc_integer(vector, in[4], k);
  }
  if ((error = started(&m, what, MPI_Ialltoall(tell, (int)told, MPI_BYTE, heard, (int)told, MPI_BYTE, m.group,
                                               &p->request))) || (error = wait_for(m.own, what, &p->request)))
    return error;
  for (int k = 0; k < count; k++) {
    int64_t gives = 0, gets = 0;
    for (int64_t i = k * each; i < (k + 1) * each; i++) {
      gives += tell[2 * i] * from->run;
      gets += heard[2 * i] * to->run;
      if (!hloc_rows_fit(heard[2 * i + 1], heard[2 * i], to->rows))
        return fails(m.own, what, "rows that it receives have no place");
    }
    counts[k] = (int)gives, counts[count + k] = (int)sends, counts[2 * count + k] = (int)gets;
    counts[3 * count + k] = (int)takes;
    sends += gives, takes += gets;
    if (sends > INT32_MAX || takes > INT32_MAX) return fails(m.own, what, "its arrays are too large for MPI");
  }
  char *rows = malloc((size_t)(sends + takes) + 1), *at = rows, *got = rows ? rows + sends : NULL;
  if (!rows) return fails(m.own, what, "there is no memory");
  for (int64_t k = 0; k < vector->rows; at += tell[2 * k] * from->run, k++)
    memcpy(at, (const char *)in[0] + hloc_integer(vector, in[2], k) * from->run, (size_t)(tell[2 * k] * from->run));
  error = started(&m, what, MPI_Ialltoallv(rows, counts, counts + count, MPI_BYTE, got, counts + 2 * count,
                                           counts + 3 * count, MPI_BYTE, m.group, &p->request));
  if (!error) error = wait_for(m.own, what, &p->request);
  for (int64_t k = 0; !error && k < vector->rows; got += heard[2 * k] * to->run, k++)
    memcpy((char *)out[0] + heard[2 * k + 1] * to->run, got, (size_t)(heard[2 * k] * to->run));
  free(rows);
  return error;
}

/* -- ending ----------------------------------------------------------------------------------------------------- */

static void combine_arrays(const hloc_collective *what, hloc_pending *p, int count, int64_t total) {
  const void *parts[count];
  int64_t at = 0;
  for (int a = 0; a < what->count; at += whole(&what->blocks[a]), a++) {
    for (int m = 0; m < count; m++) parts[m] = p->received + m * total + at;
    hloc_combine(&what->blocks[a], count, parts, 0, whole(&what->blocks[a]) / what->blocks[a].element, p->out[a]);
  }
}

/* Combines this device's shares, and gathers those of all. */
static int gather_shares(hloc_mpi *own, const hloc_collective *what, hloc_pending *p, MPI_Comm group, int count,
                         int place) {
  const void *parts[count];
  const int total = p->counts[place], direct = what->count == 1;
  char *to = direct ? (char *)p->out[0] : p->sent, *mine = to + p->counts[count + place];
  int64_t at = 0;
  for (int a = 0; a < what->count; a++) {
    const hloc_block *block = &what->blocks[a];
    const int64_t size = share_at(block, place + 1, count) - share_at(block, place, count);
    for (int m = 0; m < count; m++) parts[m] = p->received + (int64_t)m * total + at;
    hloc_combine(block, count, parts, 0, size / block->element, mine + at);
    at += size;
  }
  if (MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, to, p->counts, p->counts + count, MPI_BYTE, group, &p->request))
    return fails(own, what, "MPI reports an error");
  const int error = wait_for(own, what, &p->request);
  if (!error && !direct) copy_shares(what, count, p->sent, p->out, 1);
  return error;
}

static void unpack_blocks(const hloc_collective *what, hloc_pending *p, int count, int64_t total) {
  int64_t at = 0;
  for (int a = 0; a < what->count; at += whole(&what->blocks[a]), a++) {
    const hloc_block *block = &what->blocks[a];
    for (int m = 0; m < count; m++)
      hloc_copy_runs((char *)p->out[a] + m * block->run, block->stride, p->received + m * total + at, block->run,
                     block->rows, block->run);
  }
}

static int done(hloc_communicator *self, const hloc_collective *what) {
  hloc_mpi *own = mpi_of(self);
  hloc_pending *p = &own->pending[what->number];
  const hloc_block *block = what->blocks;
  int count = 0, place = 0, error = 0;
  if (what->kind == HLOC_SEND || what->kind == HLOC_RAGGED_ALL_TO_ALL) return 0;
  const int32_t *members = hloc_members(what, self->device, &count, &place);
  MPI_Comm group = own->world;
  if (p->request != MPI_REQUEST_NULL) error = wait_for(own, what, &p->request);
  if (members && !group_of(own, members, count, &group)) error = fails(own, what, "MPI makes no group");
  if (error) return error;
  const int64_t total = total_of(what);
  switch (what->kind) {
    case HLOC_BROADCAST: unpack_arrays(what, p->sent, p->out); return 0;
    case HLOC_PERMUTE:
    case HLOC_RECV: unpack_arrays(what, p->received, p->out); return 0;
    default: break;
  }
  if (!members) return 0;
  switch (what->kind) {
    case HLOC_ALL_REDUCE:
      if (total > HLOC_GATHERED_BYTES) return gather_shares(own, what, p, group, count, place);
      combine_arrays(what, p, count, total);
      return 0;
    case HLOC_REDUCE_SCATTER: combine_arrays(what, p, count, total); return 0;
    case HLOC_ALL_GATHER: unpack_blocks(what, p, count, total); return 0;
    default:
      for (int k = 0; k < count; k++)
        hloc_copy_runs(p->out[k], block->stride, p->received + k * whole(block), block->run, block->rows, block->run);
      return 0;
  }
}

/* -- the whole -------------------------------------------------------------------------------------------------- */

/* Processes with different programs all say so. */
static int begin(hloc_communicator *self, const char *digest, int32_t collectives) {
  hloc_mpi *own = mpi_of(self);
  if (collectives > own->pending_count) {
    hloc_pending *more = realloc(own->pending, sizeof *more * (size_t)collectives);
    if (!more) return fails(own, NULL, "there is no memory");
    memset(more + own->pending_count, 0, sizeof *more * (size_t)(collectives - own->pending_count));
    own->pending = more;
    own->pending_count = collectives;
  }
  if (!strncmp(own->digest, digest, HLOC_DIGEST_BYTES)) return 0;
  char *all = malloc(HLOC_DIGEST_BYTES * (size_t)self->devices);
  MPI_Request request;
  if (!all) return fails(own, NULL, "there is no memory");
  snprintf(own->digest, sizeof own->digest, "%s", digest);
  int error = MPI_Iallgather(own->digest, HLOC_DIGEST_BYTES, MPI_BYTE, all, HLOC_DIGEST_BYTES, MPI_BYTE, own->world,
                             &request) ? fails(own, NULL, "MPI reports an error") : wait_for(own, NULL, &request);
  for (int d = 0; !error && d < self->devices; d++)
    if (memcmp(all + d * HLOC_DIGEST_BYTES, own->digest, HLOC_DIGEST_BYTES))
      error = fails(own, NULL, "the processes have different programs");
  free(all);
  return error;
}

static void failed(hloc_communicator *self) { (void)self; }
static const char *message(hloc_communicator *self) { return mpi_of(self)->message; }

hloc_communicator *hloc_mpi_new(MPI_Comm world) {
  hloc_mpi *own = calloc(1, sizeof *own);
  int device, devices;
  if (!own) return NULL;
  MPI_Comm_rank(world, &device);
  MPI_Comm_size(world, &devices);
  MPI_Comm_dup(world, &own->world);
  own->seconds = 600;
  own->table = (hloc_communicator){
      HLOC_COMMUNICATOR_VERSION, device, devices, start_all_reduce, start_reduce_scatter, start_all_gather,
      start_all_to_all, start_broadcast, start_permute, start_send, start_recv, start_ragged, done, begin, failed,
      message};
  return &own->table;
}

void hloc_mpi_set_seconds(hloc_communicator *own, double seconds) { mpi_of(own)->seconds = seconds; }

void hloc_mpi_free(hloc_communicator *communicator) {
  hloc_mpi *own = mpi_of(communicator);
  for (hloc_message *message = own->messages, *next; message; message = next) {
    next = message->next;
    MPI_Wait(&message->request, MPI_STATUS_IGNORE);
    free(message);
  }
  for (int32_t c = 0; c < own->pending_count; c++) {
    hloc_pending *p = &own->pending[c];
    free((void *)p->in), free(p->out), free(p->sent), free(p->received), free(p->counts);
  }
  for (int g = 0; g < own->group_count; g++) {
    MPI_Comm_free(&own->groups[g].own);
    free(own->groups[g].members);
  }
  MPI_Comm_free(&own->world);
  free(own->groups);
  free(own->pending);
  free(own);
}
