/* The functions through which libmixtape reaches an MPI, which differs from site to site: a plug-in
   exports one table of them, mixtape_mpi. Compiled by the C compiler of that MPI. */
#ifndef MIXTAPE_DIST_PLUGINS_MPI_PLUGIN_H
#define MIXTAPE_DIST_PLUGINS_MPI_PLUGIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { mixtape_mpi_version = 1 };

typedef struct {
  int rank;
  void* data;
  size_t bytes;
} mixtape_mpi_transfer;

/* Functions that return int return 0, or an error code for message(). */
typedef struct {
  int version;                              /* mixtape_mpi_version */
  void (*library)(char* name, size_t size); /* "Open MPI 4.1.4" */
  int (*init)(int* rank, int* size, int* local_rank);
  int (*start)(const mixtape_mpi_transfer* sends, int send_count,
               const mixtape_mpi_transfer* receives, int receive_count, void** request);
  int (*test)(void* request, int* done);
  /* Sets missing[i] to whether transfer i (sends first) is under way. */
  void (*missing)(const void* request, char* missing);
  void (*release)(void* request);
  int (*finalize)(void);
  void (*abort)(int code);
  void (*message)(int code, char* text, size_t size);
} mixtape_mpi_table;

extern const mixtape_mpi_table mixtape_mpi;

#ifdef __cplusplus
}
#endif
#endif
