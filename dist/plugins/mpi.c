/* The plug-in for MPI: moves bytes between processes by point-to-point messages. It is C, and knows
   nothing of the library, so that a site can compile it for its own MPI:
     mpicc -O2 -shared -fPIC -o libmixtape_mpi.so mpi.c */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

#include "mpi_plugin.h"

static MPI_Comm world = MPI_COMM_NULL; /* ours alone: the program may use MPI, too */
static int initialized_here;

/* MPI counts with int: longer transfers are cut. A receive may be longer than what is sent, as long as
   both are one piece. */
#ifndef MIXTAPE_PIECE
#define MIXTAPE_PIECE ((size_t)1 << 30)
#endif
static const size_t piece = MIXTAPE_PIECE;

typedef struct {
  int transfers, pieces;
  int* owner; /* the transfer of each piece */
  MPI_Request* requests;
} request;

static size_t pieces_of(size_t bytes) { return bytes ? (bytes + piece - 1) / piece : 1; }

/* "Open MPI v4.1.4, package: ..." is Open MPI 4.1.4, "MPICH Version:\t4.0.2\n..." MPICH 4.0.2. */
static void library(char* name, size_t size) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  char* word;
  MPI_Get_library_version(text, &length);
  text[strcspn(text, ",\n")] = '\0';
  name[0] = '\0';
  for (word = strtok(text, " \t"); word; word = strtok(NULL, " \t")) {
    const size_t used = strlen(name);
    if (!strcmp(word, "Version:")) continue;
    if (word[0] == 'v' && word[1] >= '0' && word[1] <= '9') ++word;
    snprintf(name + used, size - used, "%s%s", used ? " " : "", word);
  }
}

/* Our own error codes; MPI's are positive. */
enum { has_ended = -1, one_thread = -2 };

static int init(int* rank, int* size, int* local_rank) {
  int initialized, finalized, provided, error;
  MPI_Comm node;
  if ((error = MPI_Initialized(&initialized)) || (error = MPI_Finalized(&finalized))) return error;
  if (finalized) return has_ended;
  if (!initialized) {
    if ((error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided))) return error;
    initialized_here = 1;
  } else if ((error = MPI_Query_thread(&provided))) {
    return error;
  }
  if (provided < MPI_THREAD_SERIALIZED) return one_thread;
  if ((error = MPI_Comm_dup(MPI_COMM_WORLD, &world))) return error;
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world, rank);
  MPI_Comm_size(world, size);
  if ((error = MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, *rank, MPI_INFO_NULL, &node)))
    return error;
  MPI_Comm_rank(node, local_rank);
  return MPI_Comm_free(&node);
}

static void release(void* opaque) {
  request* r = opaque;
  free(r->owner);
  free(r->requests);
  free(r);
}

static int post(request* r, int transfer, int sends, const mixtape_mpi_transfer* t) {
  char* data = t->data;
  size_t left = t->bytes;
  do {
    const int count = (int)(left < piece ? left : piece);
    MPI_Request* at = &r->requests[r->pieces];
    const int error = sends ? MPI_Isend(data, count, MPI_BYTE, t->rank, 0, world, at)
                            : MPI_Irecv(data, count, MPI_BYTE, t->rank, 0, world, at);
    if (error) return error;
    r->owner[r->pieces++] = transfer;
    data += count;
    left -= (size_t)count;
  } while (left);
  return 0;
}

static int start(const mixtape_mpi_transfer* sends, int send_count,
                 const mixtape_mpi_transfer* receives, int receive_count, void** opaque) {
  size_t all = 0;
  int i, error = 0;
  request* r = calloc(1, sizeof *r);
  for (i = 0; i < send_count; ++i) all += pieces_of(sends[i].bytes);
  for (i = 0; i < receive_count; ++i) all += pieces_of(receives[i].bytes);
  if (!r || all > INT_MAX) return free(r), MPI_ERR_NO_MEM;
  r->transfers = send_count + receive_count;
  r->owner = malloc((all + 1) * sizeof *r->owner);
  r->requests = malloc((all + 1) * sizeof *r->requests);
  if (!r->owner || !r->requests) return release(r), MPI_ERR_NO_MEM;
  *opaque = r;
  for (i = 0; i < receive_count && !error; ++i) error = post(r, send_count + i, 0, &receives[i]);
  for (i = 0; i < send_count && !error; ++i) error = post(r, i, 1, &sends[i]);
  return error;
}

static int test(void* opaque, int* done) {
  request* r = opaque;
  int i, error = 0;
  *done = 1;
  for (i = 0; i < r->pieces && !error; ++i) {
    int one = 1;
    if (r->requests[i] != MPI_REQUEST_NULL)
      error = MPI_Test(&r->requests[i], &one, MPI_STATUS_IGNORE);
    if (!one) *done = 0;
  }
  return error;
}

static void missing(const void* opaque, char* under_way) {
  const request* r = opaque;
  int i;
  memset(under_way, 0, (size_t)r->transfers);
  for (i = 0; i < r->pieces; ++i) {
    int done = 1;
    if (r->requests[i] != MPI_REQUEST_NULL)
      MPI_Request_get_status(r->requests[i], &done, MPI_STATUS_IGNORE);
    if (!done) under_way[r->owner[i]] = 1;
  }
}

static int finalize(void) {
  int error = MPI_Comm_free(&world);
  if (!error && initialized_here) error = MPI_Finalize();
  return error;
}

static void end_all(int code) {
  /* The caller has said why. What MPICH says here would hide it. */
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
  MPI_Abort(world == MPI_COMM_NULL ? MPI_COMM_WORLD : world, code);
}

static void message(int code, char* text, size_t size) {
  char of_mpi[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code > 0) MPI_Error_string(code, of_mpi, &length);
  snprintf(text, size, "%s",
           code == has_ended    ? "it was finalized before"
           : code == one_thread ? "the program initialized it without MPI_THREAD_SERIALIZED"
                                : of_mpi);
}

const mixtape_mpi_table mixtape_mpi = {mixtape_mpi_version, library, init,    start,  test,
                                       missing,             release, finalize, end_all, message};
