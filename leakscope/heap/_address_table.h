/* Where among these addresses does this one stand? Memory, tables and columns of the heap reader's own. */
#ifndef LEAKSCOPE_ADDRESS_TABLE_H
#define LEAKSCOPE_ADDRESS_TABLE_H

#include <Python.h>

#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h> /* mremap: Python.h has defined _GNU_SOURCE */
#endif

#if defined(__GNUC__) || defined(__clang__)
#define FETCH(place) __builtin_prefetch(place)
#else
#define FETCH(place) ((void)(place))
#endif

#define AHEAD 16             /* objects that are fetched before their turn */
#define BATCH 512            /* addresses that are looked up together: their cache misses overlap */
#define FIRST_ROOM (1 << 16) /* bytes that fresh memory has; it doubles */
#define MOST_INDEX INT32_MAX

/* Memory of the reader's own: pages, which grow without a copy and go back at once. */

typedef struct {
    char *data;
    size_t used, room; /* bytes */
} Memory;

static int
memory_reserve(Memory *memory, size_t more)
{
    if (memory->room - memory->used >= more)
        return 0;
    size_t room = memory->room ? memory->room : FIRST_ROOM;
    while (room - memory->used < more) {
        if (room > SIZE_MAX / 2)
            return -1;
        room *= 2;
    }
#ifdef __linux__
    void *data = memory->data == NULL
                     ? mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : mremap(memory->data, memory->room, room, MREMAP_MAYMOVE);
    if (data == MAP_FAILED)
        return -1;
#else
    char *data = realloc(memory->data, room);
    if (data == NULL)
        return -1;
    memset(data + memory->room, 0, room - memory->room);
#endif
    memory->data = data;
    memory->room = room;
    return 0;
}

static void
memory_free(Memory *memory)
{
#ifdef __linux__
    if (memory->data != NULL)
        munmap(memory->data, memory->room);
#else
    free(memory->data);
#endif
    memset(memory, 0, sizeof *memory);
}

#define COUNT(memory, type) ((memory)->used / sizeof(type))
#define AT(memory, type) ((type *)(memory)->data)
/* Append one value; for where room was reserved. */
#define PUT(memory, type, value) (*(type *)((memory)->data + (memory)->used) = (value), (memory)->used += sizeof(type))

static int
memory_add_address(Memory *memory, uintptr_t value)
{
    if (memory_reserve(memory, sizeof value) < 0)
        return -1;
    PUT(memory, uintptr_t, value);
    return 0;
}

static int
memory_add_index(Memory *memory, int32_t value)
{
    if (memory_reserve(memory, sizeof value) < 0)
        return -1;
    PUT(memory, int32_t, value);
    return 0;
}

/* A table from addresses to the places at which they stand in `keys`: open addressing, at most half full. */

typedef struct {
    Memory *keys;
    Memory slots; /* int32: place + 1, 0 where empty */
    int bits;
} Table;

static inline size_t
slot_of(const Table *table, uintptr_t key)
{
    return (size_t)(((uint64_t)key >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> (64 - table->bits));
}

static inline int32_t
probe(const Table *table, uintptr_t key, size_t slot)
{
    const int32_t *slots = AT(&table->slots, int32_t);
    const uintptr_t *keys = AT(table->keys, uintptr_t);
    size_t mask = ((size_t)1 << table->bits) - 1;
    for (;; slot = (slot + 1) & mask) {
        int32_t place = slots[slot] - 1;
        if (place < 0 || keys[place] == key)
            return place;
    }
}

static inline int32_t
table_find(const Table *table, uintptr_t key)
{
    return table->bits == 0 ? -1 : probe(table, key, slot_of(table, key));
}

static void
table_put(Table *table, int32_t place)
{
    int32_t *slots = AT(&table->slots, int32_t);
    size_t mask = ((size_t)1 << table->bits) - 1, slot = slot_of(table, AT(table->keys, uintptr_t)[place]);
    while (slots[slot] != 0)
        slot = (slot + 1) & mask;
    slots[slot] = place + 1;
}

/* Make room for so many keys, and enter those that are there already. */
static int
table_build(Table *table, size_t count)
{
    int bits = 8;
    while (((size_t)1 << bits) < 2 * count)
        bits++;
    memory_free(&table->slots);
    table->bits = 0; /* without slots the table is empty: table_find must not read them */
    if (memory_reserve(&table->slots, sizeof(int32_t) << bits) < 0)
        return -1;
    table->bits = bits;
    size_t there = COUNT(table->keys, uintptr_t);
    const uintptr_t *keys = AT(table->keys, uintptr_t);
    for (size_t k = 0; k < there; k++) {
        if (k + AHEAD < there)
            FETCH(AT(&table->slots, int32_t) + slot_of(table, keys[k + AHEAD]));
        table_put(table, (int32_t)k);
    }
    return 0;
}

/* The place of a key, which is entered if it is new; -1 where memory is short. */
static int32_t
table_add(Table *table, uintptr_t key)
{
    int32_t place = table_find(table, key);
    if (place >= 0)
        return place;
    size_t count = COUNT(table->keys, uintptr_t);
    if (count >= MOST_INDEX - 1 || memory_add_address(table->keys, key) < 0)
        return -1;
    if (table->bits == 0 || 2 * (count + 1) > (size_t)1 << table->bits) {
        if (table_build(table, 2 * (count + 1)) < 0) {
            table->keys->used -= sizeof key;
            return -1;
        }
    }
    else
        table_put(table, (int32_t)count);
    return (int32_t)count;
}

/* The places of at most BATCH keys, -1 for those that are not there. */
static void
resolve(const Table *table, const uintptr_t *keys, size_t count, int32_t *places)
{
    size_t slots[BATCH];
    for (size_t k = 0; k < count; k++) {
        slots[k] = slot_of(table, keys[k]);
        FETCH(AT(&table->slots, int32_t) + slots[k]);
    }
    for (size_t k = 0; k < count; k++) {
        int32_t place = AT(&table->slots, int32_t)[slots[k]];
        if (place != 0)
            FETCH(AT(table->keys, uintptr_t) + place - 1);
    }
    for (size_t k = 0; k < count; k++)
        places[k] = probe(table, keys[k], slots[k]);
}

/* Column: memory that is lent through the buffer protocol, and freed with its last borrower. */

typedef struct {
    PyObject_HEAD
    Memory memory;
} Column;

static void
column_dealloc(Column *self)
{
    memory_free(&self->memory);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int
column_getbuffer(Column *self, Py_buffer *view, int flags)
{
    static char nothing[8];
    char *data = self->memory.data ? self->memory.data : nothing;
    return PyBuffer_FillInfo(view, (PyObject *)self, data, (Py_ssize_t)self->memory.used, 0, flags);
}

static PyBufferProcs column_buffer = {.bf_getbuffer = (getbufferproc)column_getbuffer};

static PyTypeObject ColumnType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "leakscope.heap._gc_heap.Column",
    .tp_doc = "Numbers of one kind, read through the buffer protocol.",
    .tp_basicsize = sizeof(Column),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)column_dealloc,
    .tp_as_buffer = &column_buffer,
};

static Column *
new_column(void)
{
    return (Column *)ColumnType.tp_alloc(&ColumnType, 0);
}

/* Book: the table of the tracked objects, which stays of use after the sweep. */

typedef struct {
    PyObject_HEAD
    Column *addresses;
    Table table;
} Book;

static void
book_dealloc(Book *self)
{
    memory_free(&self->table.slots);
    Py_XDECREF(self->addresses);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
book_find_one(Book *self, PyObject *address)
{
    unsigned long long key = PyLong_AsUnsignedLongLong(address);
    if (key == (unsigned long long)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear(); /* no address: nothing stands there */
        return PyLong_FromLong(-1);
    }
    return PyLong_FromLong(table_find(&self->table, (uintptr_t)key));
}

static PyObject *
book_find(Book *self, PyObject *addresses)
{
    Py_buffer wanted;
    if (PyObject_GetBuffer(addresses, &wanted, PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    if (wanted.itemsize != sizeof(uintptr_t) || (uintptr_t)wanted.buf % sizeof(uintptr_t) != 0) {
        PyBuffer_Release(&wanted);
        PyErr_SetString(PyExc_ValueError, "addresses are of 64 bits each, and aligned");
        return NULL;
    }
    size_t count = (size_t)wanted.len / sizeof(uintptr_t);
    Column *places = new_column();
    if (places != NULL && memory_reserve(&places->memory, count * sizeof(int32_t)) < 0) {
        Py_CLEAR(places);
        PyErr_NoMemory();
    }
    if (places != NULL) {
        for (size_t k = 0; k < count; k += BATCH)
            resolve(&self->table, (const uintptr_t *)wanted.buf + k, count - k < BATCH ? count - k : BATCH,
                    AT(&places->memory, int32_t) + k);
        places->memory.used = count * sizeof(int32_t);
    }
    PyBuffer_Release(&wanted);
    return (PyObject *)places;
}

static PyMethodDef book_methods[] = {
    {"find", (PyCFunction)book_find, METH_O, "The index of each address (int64) as int32, -1 where no object stands."},
    {"find_one", (PyCFunction)book_find_one, METH_O, "The index of one address, -1 where no object stands there."},
    {NULL},
};

static PyTypeObject BookType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "leakscope.heap._gc_heap.Book",
    .tp_doc = "Finds the index of a tracked object by its address.",
    .tp_basicsize = sizeof(Book),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)book_dealloc,
    .tp_methods = book_methods,
};

#endif
