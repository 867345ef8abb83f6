/* What does gc track, and which object refers to which? One pass over the heap, into arrays of numbers.
 *
 * The Python reader (python/pure_reader.py) does the same with gc.get_referents; both give the same arrays.
 *
 * The facts of CPython it rests on:
 * - An object's tp_traverse calls the visitor it is given with each object it refers to, as often as it refers to it
 *   (Doc/c-api/gcsupport.rst). It is what gc.get_referents and gc itself call: it runs no Python code. The visitors here
 *   allocate no Python object, write no object and take no reference, so nothing moves or dies while they run.
 * - The GIL is held from when the objects are listed to the last reference, and gc is off: the heap stands still.
 * - A visitor that has run out of memory notes it, ends the traversal and is deaf from then on: some tp_traverse ignore
 *   what it returns.
 * - What is visited may be dead: before 3.12.6 module `_asyncio` shows its free list of iterators (gh-122695). A
 *   reference to one would free it again, into a list that goes round: no traversal of the module ends from then on.
 * - Objects are compared by address only; types are asked for nothing but their fields.
 * - A count of 2**31 and more says that the object is immortal (PEP 683, CPython 3.12).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_address_table.h"

#ifdef Py_GIL_DISABLED
#error "without the GIL the heap does not stand still: the Python reader serves"
#endif
#if SIZEOF_VOID_P != 8
#error "addresses are written as 64 bits: the Python reader serves"
#endif

#define MOST_OF_ONE (1 << 28) /* references of one object: one that shows more goes round in a circle */

/* What a sweep reads, column by column; the names are those of the dict that read() returns. */

enum {
    ADDRESSES, TYPE_INDEX, TYPE_LIST, TYPE_FIRST, COUNTS, LENGTHS, FIRSTS, STARTS, HOLDER, HELD, ARRAYS,
    DICT_HOLDER, DICT_ADDRESS, DICT_LENGTH, DICT_FIRST, LET_GO, LET_GO_AT, COLUMNS
};
static const char *const names[COLUMNS] = {
    "addresses", "type_index", "type_list", "type_first", "counts", "lengths", "firsts", "starts", "holder", "held",
    "arrays", "dict_holder", "dict_address", "dict_length", "dict_first", "let_go", "let_go_at"};

typedef enum { NOTHING, PLAIN, ASKED_DICT, ASKED_TUPLE, SIZED, HOLDS, ARRAY } Verdict;

typedef struct {
    /* what is asked */
    PyTypeObject *array;      /* numpy.ndarray */
    PyObject *handles;        /* tuple of str: how the names of types end that hold tensors unknown to gc */
    Py_ssize_t large;         /* bytes from which bytes and bytearrays count */
    int32_t most_counted;     /* what the count of an immortal object is given as */
    int freezing, growing;    /* gc.freeze() hides objects; the dicts are wanted */
    /* what is read */
    Memory *column[COLUMNS];
    Table tracked, types, judged, untracked, asked;
    Memory judged_types, untracked_objects, asked_objects;
    Memory verdicts;          /* uint8: of the judged types */
    Memory leads, heads;      /* uint8, int32: of the asked dicts and tuples, whether they lead on; their last edge */
    Memory edges, work;       /* int32: (holder, next edge of the held one) of those that are being asked; a stack */
    Memory other_holder, other_held; /* int32: references to and from untracked objects */
    PyTypeObject *last_type;
    Verdict last_verdict;
    int further;              /* the holders are untracked ones */
    int failed;
    size_t count;             /* tracked objects */
    /* of the object that is being read */
    int32_t now;
    int32_t length;
    PyObject *first, *last;
    uintptr_t batch[BATCH];
    int32_t holders[BATCH];
    size_t waiting;
} Sweep;

static int
ends_with(const char *name, PyObject *handles)
{
    size_t length = strlen(name);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(handles); k++) {
        Py_ssize_t size; /* read() has made the UTF-8 of each, so that this allocates nothing */
        const char *end = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(handles, k), &size);
        if (end != NULL && length >= (size_t)size && memcmp(name + length - size, end, (size_t)size) == 0)
            return 1;
    }
    return 0;
}

/* As `may_hold_tracked` of python/untracked.py: may an untracked object of the type stand between tracked ones? */
static Verdict
judge(const Sweep *sweep, PyTypeObject *type)
{
    if (type == &PyDict_Type)
        return ASKED_DICT;
    if (type == &PyTuple_Type)
        return ASKED_TUPLE;
    if (type == &PyType_Type || type == &PyList_Type || type == &PySet_Type || type == &PyFrozenSet_Type)
        return PLAIN;
    if (type == &PyBytes_Type || type == &PyByteArray_Type)
        return SIZED;
    if (type == &PyMemoryView_Type || PyType_IsSubtype(type, sweep->array))
        return ARRAY;
    return PyType_IS_GC(type) || ends_with(type->tp_name, sweep->handles) ? HOLDS : NOTHING;
}

static Verdict
verdict_of(Sweep *sweep, PyTypeObject *type)
{
    if (type == sweep->last_type)
        return sweep->last_verdict;
    int32_t place = table_find(&sweep->judged, (uintptr_t)type);
    Verdict verdict;
    if (place >= 0)
        verdict = (Verdict)AT(&sweep->verdicts, uint8_t)[place];
    else {
        verdict = judge(sweep, type);
        if (memory_reserve(&sweep->verdicts, 1) < 0 || table_add(&sweep->judged, (uintptr_t)type) < 0)
            sweep->failed = 1;
        else
            PUT(&sweep->verdicts, uint8_t, (uint8_t)verdict);
    }
    sweep->last_type = type;
    sweep->last_verdict = verdict;
    return verdict;
}

static void
traverse(PyObject *obj, visitproc visit, void *arg)
{
    traverseproc all = Py_TYPE(obj)->tp_traverse;
    if (all != NULL && PyObject_IS_GC(obj))
        (void)all(obj, visit, arg);
}

/* Does an untracked dict or tuple lead on: does it hold an array, large bytes or the like, at whatever depth?
 * Each is asked once: what it holds is entered in `asked`, and who holds whom in `edges`, which answers go back along. */

typedef struct {
    Sweep *sweep;
    int32_t now;    /* place in `asked`, -1 for what is asked alone */
    int32_t base;   /* places from here on are being asked */
    int direct, nested;
} Asking;

static int
is_held_on(Sweep *sweep, Verdict verdict, PyObject *obj)
{
    return verdict >= HOLDS || (verdict == SIZED && Py_SIZE(obj) >= sweep->large);
}

static int
visit_alone(PyObject *obj, void *arg)
{
    Asking *asking = arg;
    if (obj == NULL)
        return 0;
    Verdict verdict = verdict_of(asking->sweep, Py_TYPE(obj));
    if (is_held_on(asking->sweep, verdict, obj))
        return asking->direct = 1; /* enough is known */
    if ((verdict == ASKED_DICT || verdict == ASKED_TUPLE) && !PyObject_GC_IsTracked(obj))
        asking->nested = 1;
    return 0;
}

static int32_t
ask(Sweep *sweep, PyObject *obj)
{
    int32_t place = table_add(&sweep->asked, (uintptr_t)obj);
    if (place >= 0 && (size_t)place == COUNT(&sweep->heads, int32_t)) {
        if (memory_reserve(&sweep->leads, 1) < 0 || memory_add_index(&sweep->heads, -1) < 0) {
            sweep->failed = 1;
            return -1;
        }
        PUT(&sweep->leads, uint8_t, 0);
    }
    if (place < 0)
        sweep->failed = 1;
    return place;
}

static int
visit_nested(PyObject *obj, void *arg)
{
    Asking *asking = arg;
    Sweep *sweep = asking->sweep;
    if (obj == NULL || sweep->failed)
        return 0;
    Verdict verdict = verdict_of(sweep, Py_TYPE(obj));
    if (is_held_on(sweep, verdict, obj))
        AT(&sweep->leads, uint8_t)[asking->now] = 1;
    else if ((verdict == ASKED_DICT || verdict == ASKED_TUPLE) && !PyObject_GC_IsTracked(obj)) {
        int32_t place = ask(sweep, obj);
        if (place < 0)
            return 0;
        if (place < asking->base) {
            if (AT(&sweep->leads, uint8_t)[place])
                AT(&sweep->leads, uint8_t)[asking->now] = 1;
            return 0;
        }
        int32_t edge = (int32_t)(COUNT(&sweep->edges, int32_t) / 2);
        if (memory_reserve(&sweep->edges, 2 * sizeof(int32_t)) < 0 || edge >= MOST_INDEX / 2) {
            sweep->failed = 1;
            return 0;
        }
        PUT(&sweep->edges, int32_t, asking->now);
        PUT(&sweep->edges, int32_t, AT(&sweep->heads, int32_t)[place]);
        AT(&sweep->heads, int32_t)[place] = edge;
    }
    return 0;
}

static void
ask_all_below(Sweep *sweep, PyObject *obj)
{
    Asking asking = {sweep, 0, (int32_t)COUNT(&sweep->heads, int32_t), 0, 0};
    sweep->edges.used = sweep->work.used = 0;
    ask(sweep, obj);
    for (asking.now = asking.base; (size_t)asking.now < COUNT(&sweep->heads, int32_t) && !sweep->failed; asking.now++)
        traverse((PyObject *)AT(&sweep->asked_objects, uintptr_t)[asking.now], visit_nested, &asking);
    size_t all = COUNT(&sweep->heads, int32_t);
    if (sweep->failed || memory_reserve(&sweep->work, (all - (size_t)asking.base) * sizeof(int32_t)) < 0) {
        sweep->failed = 1;
        return;
    }
    uint8_t *leads = AT(&sweep->leads, uint8_t);
    for (size_t k = (size_t)asking.base; k < all; k++)
        if (leads[k])
            PUT(&sweep->work, int32_t, (int32_t)k);
    while (sweep->work.used) {
        sweep->work.used -= sizeof(int32_t);
        int32_t edge = AT(&sweep->heads, int32_t)[*(int32_t *)(sweep->work.data + sweep->work.used)];
        while (edge >= 0) {
            int32_t holder = AT(&sweep->edges, int32_t)[2 * edge];
            edge = AT(&sweep->edges, int32_t)[2 * edge + 1];
            if (!leads[holder]) {
                leads[holder] = 1;
                PUT(&sweep->work, int32_t, holder);
            }
        }
    }
}

static int
leads_on(Sweep *sweep, PyObject *obj)
{
    int32_t place = table_find(&sweep->asked, (uintptr_t)obj);
    if (place < 0) {
        Asking asking = {sweep, -1, 0, 0, 0};
        traverse(obj, visit_alone, &asking);
        int shared = Py_REFCNT(obj) > 1;
        if (asking.direct || !asking.nested) {
            if (shared && (place = ask(sweep, obj)) >= 0)
                AT(&sweep->leads, uint8_t)[place] = (uint8_t)asking.direct;
            return asking.direct;
        }
        ask_all_below(sweep, obj);
        place = table_find(&sweep->asked, (uintptr_t)obj);
    }
    return !sweep->failed && place >= 0 && AT(&sweep->leads, uint8_t)[place];
}

/* The references of the objects, in batches. */

static void
note_dict(Sweep *sweep, PyObject *dict, int32_t holder)
{
    Py_ssize_t at = 0;
    PyObject *key = NULL;
    if (!PyDict_Next(dict, &at, &key, NULL))
        return;
    if (memory_add_index(sweep->column[DICT_HOLDER], holder) < 0 ||
        memory_add_address(sweep->column[DICT_ADDRESS], (uintptr_t)dict) < 0 ||
        memory_add_address(sweep->column[DICT_LENGTH], (uintptr_t)PyDict_GET_SIZE(dict)) < 0 ||
        memory_add_address(sweep->column[DICT_FIRST], (uintptr_t)key) < 0)
        sweep->failed = 1;
}

static int32_t
clipped(const Sweep *sweep, Py_ssize_t count)
{
    return count > sweep->most_counted ? sweep->most_counted : (int32_t)count;
}

/* Append an object to the columns that have all. */
static int
add_object(Sweep *sweep, PyObject *obj, int32_t count)
{
    size_t index = COUNT(sweep->column[ADDRESSES], uintptr_t);
    int32_t type = table_add(&sweep->types, (uintptr_t)Py_TYPE(obj));
    if (type < 0 || index >= MOST_INDEX || memory_add_address(sweep->column[ADDRESSES], (uintptr_t)obj) < 0 ||
        memory_add_index(sweep->column[TYPE_INDEX], type) < 0 || memory_add_index(sweep->column[COUNTS], count) < 0)
        return -1;
    if ((size_t)type == COUNT(sweep->column[TYPE_FIRST], int32_t))
        return memory_add_index(sweep->column[TYPE_FIRST], (int32_t)index);
    return 0;
}

/* A referent that is no tracked object: is it of those that stand between tracked ones? */
static void
note_untracked(Sweep *sweep, PyObject *obj, int32_t holder)
{
    if (Py_REFCNT(obj) == 0)
        return;
    Verdict verdict = verdict_of(sweep, Py_TYPE(obj));
    if (verdict == NOTHING)
        return;
    int32_t place = table_find(&sweep->untracked, (uintptr_t)obj);
    if (verdict == ASKED_DICT && sweep->growing && !sweep->further)
        note_dict(sweep, obj, holder);
    if (place < 0) {
        int is_plain = verdict == PLAIN || verdict == ASKED_DICT || verdict == ASKED_TUPLE;
        int is_asked = verdict == ASKED_DICT || verdict == ASKED_TUPLE;
        int chosen = is_held_on(sweep, verdict, obj);
        if (!chosen && (sweep->further ? is_plain : sweep->freezing) && PyObject_GC_IsTracked(obj))
            chosen = 1;
        if (!chosen && is_asked && !(sweep->further && PyObject_GC_IsTracked(obj)))
            chosen = leads_on(sweep, obj);
        if (!chosen || sweep->failed)
            return;
        place = table_add(&sweep->untracked, (uintptr_t)obj);
        if (place < 0 || add_object(sweep, obj, clipped(sweep, Py_REFCNT(obj))) < 0) {
            sweep->failed = 1;
            return;
        }
    }
    size_t index = sweep->count + (size_t)place;
    if (memory_add_index(&sweep->other_holder, holder) < 0 ||
        memory_add_index(&sweep->other_held, (int32_t)index) < 0)
        sweep->failed = 1;
}

static void
flush(Sweep *sweep)
{
    int32_t places[BATCH];
    size_t count = sweep->waiting;
    sweep->waiting = 0;
    sweep->failed |= sweep->length > MOST_OF_ONE;
    if (sweep->failed)
        return;
    Memory *holder = sweep->further ? &sweep->other_holder : sweep->column[HOLDER];
    Memory *held = sweep->further ? &sweep->other_held : sweep->column[HELD];
    resolve(&sweep->tracked, sweep->batch, count, places);
    for (size_t k = 0; k < count; k++)
        if (places[k] < 0)
            FETCH(&((PyObject *)sweep->batch[k])->ob_type);
    for (size_t k = 0; k < count && !sweep->failed; k++) {
        if (places[k] < 0) {
            note_untracked(sweep, (PyObject *)sweep->batch[k], sweep->holders[k]);
            continue;
        }
        if (memory_reserve(holder, sizeof(int32_t)) < 0 || memory_reserve(held, sizeof(int32_t)) < 0) {
            sweep->failed = 1;
            return;
        }
        PUT(holder, int32_t, sweep->holders[k]);
        PUT(held, int32_t, places[k]);
        if (!sweep->further)
            AT(sweep->column[STARTS], int32_t)[sweep->holders[k] + 1]++;
    }
}

static int
visit(PyObject *obj, void *arg)
{
    Sweep *sweep = arg;
    if (obj == NULL || sweep->failed)
        return sweep->failed;
    if (sweep->length++ == 0)
        sweep->first = obj;
    sweep->last = obj;
    sweep->batch[sweep->waiting] = (uintptr_t)obj;
    sweep->holders[sweep->waiting] = sweep->now;
    if (++sweep->waiting == BATCH)
        flush(sweep);
    return sweep->failed;
}

static int
read_objects(Sweep *sweep, PyObject *objects)
{
    size_t count = sweep->count = (size_t)PyList_GET_SIZE(objects);
    static const int32_t widths[] = {
        [ADDRESSES] = 8, [TYPE_INDEX] = 4, [COUNTS] = 4, [LENGTHS] = 4, [FIRSTS] = 8, [STARTS] = 4};
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
        if (widths[k] && memory_reserve(sweep->column[k], (count + 1) * (size_t)widths[k]) < 0)
            return -1;
    PyObject *const *items = ((PyListObject *)objects)->ob_item;
    for (size_t k = 0; k < count; k++) {
        if (k + AHEAD < count)
            FETCH(items[k + AHEAD]);
        if (add_object(sweep, items[k], clipped(sweep, Py_REFCNT(items[k]) - 1)) < 0) /* without the list's own */
            return -1;
    }
    sweep->column[STARTS]->used = (count + 1) * sizeof(int32_t);
    return table_build(&sweep->tracked, count);
}

static void
read_references(Sweep *sweep, PyObject *objects)
{
    size_t count = (size_t)PyList_GET_SIZE(objects);
    PyObject *const *items = ((PyListObject *)objects)->ob_item;
    for (size_t k = 0; k < count && !sweep->failed; k++) {
        if (k + AHEAD < count)
            FETCH(items[k + AHEAD]);
        sweep->now = (int32_t)k;
        sweep->length = 0;
        sweep->first = sweep->last = NULL;
        traverse(items[k], visit, sweep);
        PUT(sweep->column[LENGTHS], int32_t, sweep->length);
        /* list_traverse goes from the last item to the first (Objects/listobject.c) */
        PUT(sweep->column[FIRSTS], uintptr_t, (uintptr_t)(PyList_CheckExact(items[k]) ? sweep->last : sweep->first));
    }
    flush(sweep);
    int64_t sum = 0;
    for (size_t k = 0; k <= count; k++) {
        sum += AT(sweep->column[STARTS], int32_t)[k];
        AT(sweep->column[STARTS], int32_t)[k] = (int32_t)sum;
    }
    if (sum > MOST_INDEX)
        sweep->failed = 1;
}

/* What the untracked ones refer to; arrays, which gc cannot read, are left to Python. */
static void
read_untracked(Sweep *sweep)
{
    sweep->further = 1;
    for (size_t k = 0; k < COUNT(&sweep->untracked_objects, uintptr_t) && !sweep->failed; k++) {
        PyObject *obj = (PyObject *)AT(&sweep->untracked_objects, uintptr_t)[k];
        sweep->now = (int32_t)(sweep->count + k);
        sweep->length = 0;
        if (verdict_of(sweep, Py_TYPE(obj)) != ARRAY)
            traverse(obj, visit, sweep);
        else if (memory_add_index(sweep->column[ARRAYS], (int32_t)k) < 0)
            sweep->failed = 1;
        flush(sweep); /* the next one may be among what this one shows */
    }
}

static int
join_others(Sweep *sweep)
{
    Memory *const pairs[][2] = {
        {sweep->column[HOLDER], &sweep->other_holder}, {sweep->column[HELD], &sweep->other_held}};
    for (int k = 0; k < 2; k++) {
        if (memory_reserve(pairs[k][0], pairs[k][1]->used) < 0)
            return -1;
        if (pairs[k][1]->used)
            memcpy(pairs[k][0]->data + pairs[k][0]->used, pairs[k][1]->data, pairs[k][1]->used);
        pairs[k][0]->used += pairs[k][1]->used;
    }
    return COUNT(sweep->column[HOLDER], int32_t) > MOST_INDEX ? -1 : 0;
}

/* A tuple with the same items; where nothing stands yet, None. */
static PyObject *
stand_in(PyObject *tuple)
{
    PyObject *made = PyTuple_New(PyTuple_GET_SIZE(tuple));
    for (Py_ssize_t k = 0; made != NULL && k < PyTuple_GET_SIZE(tuple); k++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, k);
        PyTuple_SET_ITEM(made, k, Py_NewRef(item == NULL ? Py_None : item));
    }
    return made;
}

#define NO_ADDRESS 1 /* no object's: they are aligned */

/* Hold no tuple that no object of the heap holds, but another in its place. C of another thread's may be filling it, and
 * CPython refuses to resize a tuple that somebody else holds as well (Objects/tupleobject.c, _PyTuple_Resize). */
static int
let_go(Sweep *sweep, PyObject *objects)
{
    size_t held_count = COUNT(sweep->column[HELD], int32_t);
    sweep->leads.used = 0;
    if (memory_reserve(&sweep->leads, sweep->count + 1) < 0) /* one more: the memory is there where the list is empty */
        return -1;
    uint8_t *is_held = AT(&sweep->leads, uint8_t);
    memset(is_held, 0, sweep->count);
    for (size_t k = 0; k < held_count; k++)
        if ((size_t)AT(sweep->column[HELD], int32_t)[k] < sweep->count)
            is_held[AT(sweep->column[HELD], int32_t)[k]] = 1;
    for (size_t k = 0; k < sweep->count; k++) {
        PyObject *tuple = PyList_GET_ITEM(objects, k), *made;
        if (!PyTuple_CheckExact(tuple) || AT(sweep->column[COUNTS], int32_t)[k] > 1 || is_held[k])
            continue;
        if (memory_add_address(sweep->column[LET_GO], (uintptr_t)tuple) < 0 ||
            memory_add_index(sweep->column[LET_GO_AT], (int32_t)k) < 0 || (made = stand_in(tuple)) == NULL)
            return -1;
        AT(sweep->column[ADDRESSES], uintptr_t)[k] = NO_ADDRESS; /* what the address belongs to next is another */
        PyList_SET_ITEM(objects, k, made);
        Py_DECREF(tuple);
    }
    return 0;
}

static PyObject *
list_of(const Memory *objects)
{
    Py_ssize_t count = (Py_ssize_t)COUNT(objects, uintptr_t);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t k = 0; list != NULL && k < count; k++)
        PyList_SET_ITEM(list, k, Py_NewRef((PyObject *)AT(objects, uintptr_t)[k]));
    return list;
}

static PyObject *
give(Column *const *columns, Book *book, PyObject *objects, const Sweep *sweep)
{
    PyObject *untracked = list_of(&sweep->untracked_objects), *result = PyDict_New();
    if (untracked == NULL || result == NULL || PyDict_SetItemString(result, "untracked", untracked) < 0 ||
        PyDict_SetItemString(result, "book", (PyObject *)book) < 0 ||
        PyDict_SetItemString(result, "objects", objects) < 0)
        Py_CLEAR(result);
    for (int k = 0; k < COLUMNS && result != NULL; k++)
        if (PyDict_SetItemString(result, names[k], (PyObject *)columns[k]) < 0)
            Py_CLEAR(result);
    Py_XDECREF(untracked);
    return result;
}

static PyObject *
read_heap(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *listing, *objects, *result = NULL;
    Sweep sweep = {0};
    int alone;
    if (!PyArg_ParseTuple(args, "OO!O!nippp:read", &listing, &PyType_Type, &sweep.array, &PyTuple_Type, &sweep.handles,
                          &sweep.large, &sweep.most_counted, &sweep.freezing, &sweep.growing, &alone))
        return NULL;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(sweep.handles); k++)
        if (PyUnicode_AsUTF8(PyTuple_GET_ITEM(sweep.handles, k)) == NULL)
            return NULL;
    /* from here on no other thread runs: the heap stands still */
    objects = PyCallable_Check(listing) ? PyObject_CallNoArgs(listing) : Py_NewRef(listing);
    if (objects == NULL || !PyList_Check(objects) || PyList_GET_SIZE(objects) >= MOST_INDEX) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_OverflowError, "no list, or one of more objects than int32 counts");
        Py_XDECREF(objects);
        return NULL;
    }
    int collecting = PyGC_Disable(), failed = 0; /* the lists and dicts made at the end would start a collection */
    Column *columns[COLUMNS] = {NULL};
    Book *book = (Book *)BookType.tp_alloc(&BookType, 0);
    for (int k = 0; k < COLUMNS; k++) {
        columns[k] = new_column();
        failed |= columns[k] == NULL;
        sweep.column[k] = columns[k] == NULL ? NULL : &columns[k]->memory;
    }
    if (book != NULL && !failed) {
        sweep.tracked.keys = sweep.column[ADDRESSES];
        sweep.types.keys = sweep.column[TYPE_LIST];
        sweep.judged.keys = &sweep.judged_types;
        sweep.untracked.keys = &sweep.untracked_objects;
        sweep.asked.keys = &sweep.asked_objects;
        sweep.failed = read_objects(&sweep, objects) < 0;
        if (!sweep.failed)
            read_references(&sweep, objects);
        if (!sweep.failed)
            read_untracked(&sweep);
        if (sweep.failed || join_others(&sweep) < 0 || (!alone && let_go(&sweep, objects) < 0))
            PyErr_NoMemory();
        else {
            book->addresses = (Column *)Py_NewRef((PyObject *)columns[ADDRESSES]);
            book->table = sweep.tracked;
            memset(&sweep.tracked, 0, sizeof sweep.tracked);
            result = give(columns, book, objects, &sweep);
        }
    }
    Memory *const own[] = {
        &sweep.tracked.slots, &sweep.types.slots, &sweep.judged.slots, &sweep.untracked.slots, &sweep.asked.slots,
        &sweep.judged_types, &sweep.untracked_objects, &sweep.asked_objects, &sweep.verdicts, &sweep.leads, &sweep.heads,
        &sweep.edges, &sweep.work, &sweep.other_holder, &sweep.other_held};
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        memory_free(own[k]);
    for (int k = 0; k < COLUMNS; k++)
        Py_XDECREF(columns[k]);
    Py_XDECREF(book);
    Py_DECREF(objects);
    if (collecting)
        PyGC_Enable();
    return result;
}

/* The objects in `count` pointer slots from `first` on, `missing` for an empty one; None where the memory at `guard`
 * (1 or 8 bytes) has another value than the one that makes the slots valid.
 *
 * The check and the reads are one call under the GIL, and nothing here allocates between them but the list, which is
 * made before: no other thread can move or free the slots. The caller vouches that `guard` can be read and that the
 * slots are valid while it has that value (raw_types.py). */
static PyObject *
read_slots(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long guard, expected, first;
    int width;
    Py_ssize_t count;
    PyObject *missing;
    if (!PyArg_ParseTuple(args, "KiKKnO:slots", &guard, &width, &expected, &first, &count, &missing))
        return NULL;
    PyObject *found = PyList_New(count < 0 ? 0 : count);
    if (found == NULL)
        return NULL;
    uint64_t now = width == 1 ? *(const uint8_t *)(uintptr_t)guard : *(const uint64_t *)(uintptr_t)guard;
    if (now != expected) {
        Py_DECREF(found);
        Py_RETURN_NONE;
    }
    PyObject *const *slots = (PyObject *const *)(uintptr_t)first;
    for (Py_ssize_t k = 0; k < count; k++)
        PyList_SET_ITEM(found, k, Py_NewRef(slots[k] == NULL ? missing : slots[k]));
    return found;
}

/* The dict of an instance of a type with a managed dict (Py_TPFLAGS_MANAGED_DICT), or a copy of the attributes that it
 * keeps without one; None where it has neither. Nothing is made that stays with the instance, as reading `__dict__` does.
 *
 * raw_types.py has the same by ctypes, and says which headers of CPython the places are from. It tries on an instance of
 * its own whether they are right, before it calls this. */
static PyObject *
read_attributes(PyObject *Py_UNUSED(module), PyObject *obj)
{
    PyObject *copy = PyDict_New(); /* before the values are found: it may collect */
    PyTypeObject *type = Py_TYPE(obj);
    PyObject **values = NULL, *dict = NULL;
    if (copy == NULL)
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    dict = ((PyObject **)obj)[-3];
    if (type->tp_flags & Py_TPFLAGS_INLINE_VALUES && ((uint8_t *)obj)[2 * sizeof(void *) + 3] == 1)
        values = (PyObject **)obj + 3;
#elif PY_VERSION_HEX >= 0x030C0000
    if (((uintptr_t *)obj)[-3] & 1)
        values = (PyObject **)(((uintptr_t *)obj)[-3] + 1);
    else
        dict = ((PyObject **)obj)[-3];
#elif PY_VERSION_HEX >= 0x030B0000
    dict = ((PyObject **)obj)[-3];
    values = ((PyObject ***)obj)[-4];
#endif
    if (dict != NULL || values == NULL) {
        Py_DECREF(copy);
        return Py_NewRef(dict == NULL ? Py_None : dict);
    }
    const char *keys = (const char *)((PyHeapTypeObject *)type)->ht_cached_keys;
    if (keys == NULL)
        return copy;
    Py_ssize_t entries = ((const Py_ssize_t *)keys)[3];
    PyObject *const *names = (PyObject *const *)(keys + 4 * sizeof(Py_ssize_t) + ((size_t)1 << (uint8_t)keys[9]));
    for (Py_ssize_t k = 0; k < entries; k++)
        if (values[k] != NULL && PyDict_SetItem(copy, names[2 * k], values[k]) < 0) {
            Py_DECREF(copy);
            return NULL;
        }
    return copy;
}

static PyMethodDef functions[] = {
    {"read", read_heap, METH_VARARGS,
     "read(objects or what lists them, ndarray, handles, large, most_counted, freezing, growing, alone) -> "
     "{name: Column}, objects, untracked, book"},
    {"slots", read_slots, METH_VARARGS, "slots(guard, width, expected, first, count, missing) -> list or None"},
    {"attributes", read_attributes, METH_O, "attributes(obj with a managed dict) -> dict or None"},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_gc_heap", .m_doc = "The gc heap as numbers.", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC
PyInit__gc_heap(void)
{
    if (PyType_Ready(&ColumnType) < 0 || PyType_Ready(&BookType) < 0)
        return NULL;
    return PyModule_Create(&module);
}
