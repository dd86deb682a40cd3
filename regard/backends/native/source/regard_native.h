// The C interface of regard's CPU attention: plain structs and no types of C++ or of PyTorch, so that one build serves
// every version of Python and PyTorch. Pointers are borrowed for the duration of a call. Lengths are counted in rows,
// keys or numbers, never in bytes.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RG_VERSION 10
#define RG_MOST_ROWS 192  // of a row block
#define RG_ROWS_OF_BITS 64  // of a row block that `rg_lower` writes for a batch row with hidden keys between others
#define RG_MOST_TOP 512   // of the largest weights of a row
#define RG_CHUNK 32       // positions of a recurrent mechanism between two memories
#define RG_SPAN 2048      // keys that are always summed apart from the others, so that threads may share a long row
#define RG_NO_LIMIT INT64_MAX  // of a side of a window

enum { RG_WHOLE = 0, RG_BOUNDED = 1, RG_BITS = 2 };                 // kinds of runs, as in schedule.py
enum { RG_FLOAT32 = 0, RG_BFLOAT16 = 1, RG_FLOAT16 = 2, RG_INT8 = 3, RG_FLOAT64 = 4 };  // types of numbers in memory

// What was wrong with a call; nothing was written then. `library.py` has a sentence for each.
enum {
  RG_OK = 0,
  RG_NO_KERNEL = 1,      // this processor has none of the instruction sets that it was built for
  RG_BAD_SIZES = 2,      // a size is negative or 0, or heads do not divide
  RG_BAD_BLOCKS = 3,     // row blocks do not follow each other, or have more than RG_MOST_ROWS rows
  RG_BAD_RUNS = 4,       // runs of a block are not ascending, or end outside the keys of the call
  RG_BAD_PLACES = 5,     // bounds or bits of a run lie outside their arrays
  RG_BAD_TENSOR = 6,     // strides of a tensor lead outside its memory, or its type is unknown
  RG_BAD_OPTIONS = 7,    // a missing array, threads below 1
  RG_NO_MEMORY = 8,
  RG_BAD_ID = 9,         // an id of a program is not in the table
  RG_NOT_FINITE = 10,    // an attention of a program has NaN or infinity
};

// A schedule as `Schedule.flat` writes it, and the key at which its panels begin. Sums of a row are made panel by panel
// from `origin` on, so equal origins give equal bits wherever the rows are cut.
typedef struct {
  int32_t blocks, runs, bounds, words;  // lengths of the arrays
  int32_t origin;
  const int32_t *block;     // [blocks][4]: first row, end of rows, first run, end of runs
  const int32_t *run;       // [runs][4]: first key, end of keys, kind, place
  const int32_t *lo, *hi;   // [bounds]: row r of a BOUNDED run may look at the keys lo[place + r] <= key < hi[place + r]
  const uint32_t *bits;     // [words]: row r of a BITS run has ceil(keys / 32) words from place + r * that on
} rg_schedule;

// A tensor (batch, heads, rows, dim) whose last axis is dense. `size` numbers may be read from `data` on.
typedef struct {
  void *data;
  int64_t batch, head, row;  // strides
  int64_t size;
  int32_t type;
} rg_tensor;

// Which keys the queries of each batch row may look at, as data of a call: those of the row's span that its mask allows, within
// the window of the query. `rg_lower` writes a schedule for each row and head, number row * heads + head; the arrays have room
// for all of them.
typedef struct {
  int32_t rows, heads, q_len, keys; // rows: batch, or 1 if all batch rows are alike; heads likewise. Keys are counted from 0
  const uint8_t *mask;              // query i of row r and head h may look at key j if
                                    // mask[r * mask_row + h * mask_head + i * mask_query + j * mask_key] is not 0; NULL: each
  int64_t mask_row, mask_head, mask_query, mask_key;  // mask_query 0: the same keys for every query
  int64_t mask_size;                // booleans that may be read from mask on
  const int64_t *start, *stop;      // row r: start[r * start_row] <= key < stop[r * stop_row]; NULL: from 0, and to the last key
  int64_t start_row, stop_row;      // 0 or 1, like position_row
  const int64_t *position;          // of the first query of row r: position[r * position_row]
  int64_t position_row;
  int64_t left, right;              // a query at position p may look at p - left <= key <= p + right; RG_NO_LIMIT: no limit
  rg_schedule *schedule;            // [rows][heads]
  int32_t *block, *run;             // [rows][heads][ceil(q_len / RG_ROWS_OF_BITS)][4]
  int32_t *lo, *hi;                 // [rows][heads][q_len]
  uint32_t *bits;                   // [words]
  int64_t words;
} rg_visible;

// What is added to scores, float64 if q is, else float32: the number of (batch row b, head h, row i, key j) stands at
// at[b] + h * head + i * row + (j - first_key) * key. In a table by distance `row` is -1 and `key` is 1.
typedef struct {
  const void *data;               // NULL: nothing is added
  const int64_t *at;              // [batch]
  int64_t head, row, key;
  int64_t size;                   // numbers that may be read from data on
} rg_bias;

// Statistics of the weights before dropout, in the type of log_sum_exp; what is NULL is not wanted. Keys count from first_key.
typedef struct {
  void *entropy, *distance;       // [batch][heads][q_len], in nats and in positions; 0 for an empty row
  void *received;                 // [batch][heads][keys], filled with zeros
  int32_t top;                    // keys of a row in the two arrays that follow, at most RG_MOST_TOP; 0: not wanted
  void *top_weights;              // [batch][heads][q_len][top], the largest first; 0 where there are fewer keys
  int64_t *top_keys;              // likewise; -1 where there are fewer. Of equal scores the first key comes first
  void *weights;                  // [batch][weight_heads][weight_rows][keys], filled with zeros
  int32_t weight_heads, weight_rows;
  const int32_t *head_slot, *row_slot;  // [heads], [q_len]: the place of a head or row in `weights`; -1: none
} rg_statistics;

// Blocks of keys that are listed for each row, in place of schedules: row r of batch row b and head h may look at the keys of
// the blocks block[b * batch + list of h * list + r / rows * count + 0 .. count - 1] that are within the row's bounds. Numbers
// may have any order; equal ones count once, those below 0 or behind the last key as none.
typedef struct {
  const int64_t *block;
  int64_t batch, list;            // strides
  int64_t size;                   // numbers that may be read from block on
  int32_t batches, lists;         // 1 or those of the call; `lists` divides heads
  int32_t count, rows, keys;      // numbers of a list, rows that have one list, keys of a block
  int32_t bounds;                 // 1 or batch
  const int32_t *lo, *hi;         // [bounds][q_len]: row r may look at the keys lo[r] <= key < hi[r]
} rg_lists;

// Windows in place of schedules: a position may look at those of its own window. Window w has the positions cell[first[w]] ..
// cell[first[w + 1] - 1], and every position has a window.
typedef struct {
  int32_t windows;
  const int32_t *first;           // [windows + 1], ascending from 0 to q_len
  const int32_t *cell;            // [q_len]
} rg_windows;

typedef struct {
  int32_t batch, heads, kv_heads, q_len, head_dim, v_dim;
  int32_t first_key, keys;        // k and v hold the keys first_key <= key < first_key + keys
  int32_t threads;
  int32_t precise;                // 1: weights are never rounded, also where q, k and v are bfloat16
  double scale, softcap;          // softcap 0: none
  double dropout;                 // share of the weights that are dropped, by the law in dropout.py
  uint64_t dropout_seed;
  const int64_t *start;           // [batch]: positions of the first queries; read for dropout and distances
  rg_bias bias;
  const rg_lists *lists;          // NULL: schedules. With them there is no softcap, bias, dropout or statistic, and all types are that of q
  const rg_windows *windows;      // NULL: schedules. With them keys are as many as queries, a bias is a table by distance, and there
                                  // is no list, int8, dropout or statistic
  int32_t schedules;
  const rg_schedule *schedule;    // [schedules]
  const int32_t *schedule_of;     // [batch][heads]: which schedule; NULL: the first for all
  rg_tensor q, k, v, out;         // out: the result, in its own type
  rg_tensor k_scale, v_scale;     // one number for each int8 key and value; data NULL otherwise
  void *log_sum_exp;              // [batch][heads][q_len] float64 if q is, else float32; -inf for an empty row.
                                  // NULL: not wanted; the backward pass, `received` and `weights` read it
  void *row_sums;                 // [2][batch][heads][q_len] likewise: the highest score in powers of 2, and the sum of 2^(score -
                                  // highest). NULL: not wanted; weights are computed from log_sum_exp then
  const rg_statistics *statistics;  // of the forward pass; NULL: none
  int32_t *unsound;               // becomes 1 if a number of the output is NaN or infinite, else 0; NULL: not wanted
} rg_call;

typedef struct {                  // gradients: dq, dk, dv in float64 if q is, else in float32
  rg_tensor dout;
  const void *dlog_sum_exp;       // like log_sum_exp, or NULL
  rg_tensor dq, dk, dv;
  rg_tensor dbias;                // (batch, heads, q_len, keys), filled with zeros; data NULL: not wanted
  rg_tensor dtable;               // (batch, heads, 1, size of a row of the table) for a table by distance, likewise
} rg_gradients;

// A recurrent mechanism over `length` positions; see recurrence.h. Memories are (batch, kv_heads, head_dim, v_dim) without
// gaps, like log_decay, strength and all that the backward pass adds in float64 if q is, else in float32.
typedef struct {
  int32_t batch, heads, key_heads, kv_heads, length, head_dim, v_dim;  // heads of q, of k, of v
  int32_t threads, delta, decays;  // decays 0: none, 1: a number for each key, 2: one for each of its channels
  double scale, unit;              // unit: 0, or what is added to the squared lengths of q and k, which are then brought
                                   // to length 1; not where gradients follow
  rg_tensor q, k, v, out;          // out (batch, the larger of heads and kv_heads, length, v_dim)
  rg_tensor log_decay, strength;   // (batch, kv_heads, length, 1 or head_dim); data NULL: 0, and 1
  const void *before;
  void *after;
  void *kept, *solved;             // for the backward pass, or NULL: the memory before each RG_CHUNK positions, (batch,
                                   // kv_heads, chunks, head_dim, v_dim), and of a delta rule (batch, kv_heads, length, v_dim)
} rg_recurrence;

typedef struct {                   // gradients; dlog_decay and dstrength where there are log decays and strengths
  rg_tensor dout;                  // (batch, ..., length, v_dim); data NULL: 0
  const void *dafter;              // NULL: 0
  rg_tensor dq, dk, dv, dlog_decay, dstrength;
  void *dbefore;
} rg_recurrence_gradients;

int32_t rg_recur(const rg_recurrence *);
int32_t rg_recur_back(const rg_recurrence *, const rg_recurrence_gradients *);

// A program: the layers of a network over a few rows, float32, as operations one after the other on buffers (rows, width).
#define RG_MOST_BUFFERS 64
#define RG_MOST_PROGRAM_ROWS 64
#define RG_MOST_STEPS 1024  // of a text that a program continues by itself

enum {
  RG_EMBED = 0,     // into = row `ids` of the table weight (.., width) · number, plus bias (places, width)
  RG_PROJECT = 1,   // into = from weightᵀ + bias; weight (width of into, width of from), bias (width of into)
  RG_NORM = 2,      // into = (from - mean) / sqrt(variance + number) · weight + bias
  RG_ACTIVATE = 3,  // into = activation(into)
  RG_MULTIPLY = 4,  // into = into · from
  RG_ROTATE = 5,    // heads of into are rotated: x · cos + (halves of x exchanged) · sin
  RG_ATTEND = 6,    // into = attention of the queries `from`
  RG_RMS_NORM = 7,  // into = from / sqrt(mean of squares + number) · weight
  RG_PROJECT_PANELS = 8,  // as RG_PROJECT; weight (width of into / head_dim, width of from, head_dim): panels of neighbouring outputs
};
enum { RG_RELU = 0, RG_GELU = 1, RG_GELU_TANH = 2, RG_SILU = 3 };
enum { RG_AS_IT_IS = -1, RG_AMONG_ROWS = -2 };

typedef struct {
  int32_t kind, from, into;       // kind, and numbers of buffers
  int32_t keys, values;           // buffers of RG_ATTEND, unless it is the call as it is
  int32_t activation, adds;       // adds: the product of RG_PROJECT is added to what the buffer holds
  int32_t head_dim;               // of RG_ROTATE; of RG_PROJECT_PANELS the outputs of a panel, a multiple of 32
  double number;
  const void *weight, *bias;      // NULL where there is none
  int64_t weight_size, bias_size; // numbers that may be read
  const rg_call *call;            // of RG_ATTEND; the addresses of q and out, threads and `unsound` are written into a copy of it
  int64_t back;                   // at least 0: `keys` and `values` become entry `place` of the call's k and v, which have room
                                  // for it, and the query of each row looks at entries place - back to place. RG_AS_IT_IS, or
                                  // RG_AMONG_ROWS: the rows of `keys` and `values` are k and v, (batch, q_len, heads, dim)
} rg_operation;

typedef struct {
  int32_t operations;
  const rg_operation *operation;
  int32_t buffers;
  const int32_t *width;           // [buffers]
  void *const *given;             // [buffers]: memory of a buffer, or NULL: it is only needed while the program runs
  int32_t rows, place;
  const int64_t *ids;             // [rows]
  const float *cos, *sin;         // [places][rotated]
  int32_t rotated;
  int32_t places;                 // positions of the rows: row r stands at position place + r % places
} rg_program;

// RG_OK, or what was wrong. After RG_NOT_FINITE buffers and entry `place` hold unfinished numbers.
int32_t rg_run(const rg_program *);

// Texts that a program continues by itself: in each step with the likeliest id of each row, or as a beam search does, with the
// likeliest continuations of the `beam` neighbouring rows of each text.
typedef struct {
  const rg_program *program;      // of the first step, with 1 place: its cos and sin have a row (rotated) for each step
  const float *vectors;           // [steps][width of the embedding]: its bias in each step; NULL: that of the operation
  int32_t logits;                 // the buffer of the scores
  int32_t steps;                  // the most
  int32_t beam;                   // rows of each text
  int32_t nevers;
  const int64_t *never;           // [nevers]: ids that are not chosen
  int64_t end;                    // the id that ends a text, or -1
  int64_t *ids;                   // [steps][rows]: those that were chosen
  double *log_probs;              // [steps][rows]
  int32_t *parents;               // [steps][rows], of a beam: the row that each row continues; NULL: the likeliest id of each row
  double *totals;                 // [rows], of a beam: the log-probability of each row, the likeliest of a text first
  const double *floors;           // [rows / beam], of a beam: a step whose likeliest total is at most this is not written
  int32_t written;                // steps that were written; unless `scored`, the last ids are in no text yet
  int32_t scored;                 // whether the buffer has the scores of one step more, which is not written
} rg_writing;

// RG_OK, or what was wrong in the step after those that were written.
int32_t rg_write(rg_writing *);

int32_t rg_version(void);
const char *rg_sources(void);               // the digest of the sources that it was built from
void rg_use_threads(void *function);         // the address of GOMP_parallel, where its name is not visible
int32_t rg_has_threads(void);               // whether an OpenMP library with threads was found when it was loaded
int32_t rg_instructions(void);              // 0: none that fits this processor, 1: no own instructions, 2: AVX2,
                                            // 3: AVX-512, 4: AVX-512 with BF16, 5: NEON
int32_t rg_use_instructions(int32_t);       // choose fewer than the processor has, for tests; 0 chooses again
void rg_sizes(int32_t sizes[14]);           // of the structs in this file in bytes: schedule, tensor, bias, call, gradients,
                                            // statistics, recurrence and its gradients, lists, visible, operation, program,
                                            // writing, windows
// Write the schedules of a call, and return how many words of bits they need. Nothing is complete if that is more than `words`:
// give more room then. -1: a size is below 1, an array is missing, or a number is farther than 2^62 from 0.
int64_t rg_lower(const rg_visible *);
// Whether a number of a key that no query may look at is NaN or farther from 0 than `limit`: its products could be NaN although
// its weight is 0. x is (batch, heads, keys, dim) and no int8.
int32_t rg_hides_extreme(const rg_visible *, const rg_tensor *x, int32_t batch, int32_t heads, int32_t dim, double limit);
int32_t rg_forward(const rg_call *);
int32_t rg_backward(const rg_call *, const rg_gradients *);

#ifdef __cplusplus
}
#endif
