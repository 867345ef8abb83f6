/* Walks over a graph: what is reached, how far it is, and what holds itself. References are columns of int32: holder and held.
 *
 * _walks_fallback.py does the same where this was not built. Every number that comes in is compared with the count of objects
 * before it is used as a place. The GIL is kept: a process that stands still while it is looked at goes on doing so.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

typedef struct {
    Py_buffer buffer;
    const int32_t *values;
    const double *costs; /* of a column of these */
    Py_ssize_t count;
} Column;

static int
take(PyObject *object, Column *column, const char *format, Py_ssize_t size)
{
    if (object == NULL) { /* a later argument was refused */
        PyBuffer_Release(&column->buffer);
        return 1;
    }
    if (PyObject_GetBuffer(object, &column->buffer, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0)
        return 0;
    const Py_buffer *given = &column->buffer;
    /* a memoryview that was cast may begin anywhere: C reads an int32 at a multiple of four only */
    if (given->ndim != 1 || given->itemsize != size || given->format == NULL || strcmp(given->format, format) != 0 ||
        (uintptr_t)given->buf % (uintptr_t)size != 0) {
        PyBuffer_Release(&column->buffer);
        PyErr_SetString(PyExc_ValueError, "a column is of int32, a cost of float64, aligned and of one dimension");
        return 0;
    }
    column->count = column->buffer.len / size;
    return Py_CLEANUP_SUPPORTED;
}

static int
take_column(PyObject *object, void *taken)
{
    Column *column = taken;
    int result = take(object, column, "i", sizeof(int32_t));
    column->values = column->buffer.buf;
    return result;
}

static int
take_costs(PyObject *object, void *taken)
{
    Column *column = taken;
    int result = take(object, column, "d", sizeof(double));
    column->costs = column->buffer.buf;
    return result;
}

static int
is_below(const Column *column, int32_t most)
{
    uint32_t highest = 0; /* a negative number counts as a high one */
    for (Py_ssize_t k = 0; k < column->count; k++)
        if ((uint32_t)column->values[k] > highest)
            highest = (uint32_t)column->values[k];
    if (column->count == 0 || highest < (uint32_t)most)
        return 1;
    PyErr_Format(PyExc_ValueError, "there is no object %u among %d", highest, most);
    return 0;
}

/* Dijkstra's algorithm enters an object at most once for each reference to it only where no cost is negative, and NaN is
 * neither below nor above anything. An infinite cost is that of no way at all. */
static int
are_costs(const Column *column)
{
    for (Py_ssize_t k = 0; k < column->count; k++)
        if (!(column->costs[k] >= 0)) {
            PyErr_SetString(PyExc_ValueError, "a cost is negative or not a number");
            return 0;
        }
    return 1;
}

static int32_t *
new_array(Py_ssize_t count, PyObject **object)
{
    *object = PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t));
    return *object == NULL ? NULL : (int32_t *)PyByteArray_AS_STRING(*object);
}

/* rows(count, holder, held) -> (first, below): what object k holds is below[first[k]:first[k + 1]], in the order given. */
static PyObject *
rows(PyObject *module, PyObject *arguments)
{
    (void)module;
    int count;
    Column holder = {0}, held = {0};
    PyObject *first_object = NULL, *below_object = NULL, *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "iO&O&", &count, take_column, &holder, take_column, &held))
        return NULL;
    if (count < 0 || holder.count != held.count || holder.count > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "both columns have as many references");
    else if (is_below(&holder, count) && is_below(&held, count)) {
        int32_t *first = new_array((Py_ssize_t)count + 1, &first_object);
        int32_t *below = first == NULL ? NULL : new_array(holder.count, &below_object);
        if (below != NULL) {
            memset(first, 0, ((size_t)count + 1) * sizeof(int32_t));
            for (Py_ssize_t k = 0; k < holder.count; k++)
                first[holder.values[k] + 1]++;
            for (int32_t k = 0; k < count; k++)
                first[k + 1] += first[k];
            for (Py_ssize_t k = 0; k < holder.count; k++)
                below[first[holder.values[k]]++] = held.values[k];
            memmove(first + 1, first, (size_t)count * sizeof(int32_t)); /* each stands at the end of its row by now */
            first[0] = 0;
            answer = PyTuple_Pack(2, first_object, below_object);
        }
    }
    Py_XDECREF(first_object);
    Py_XDECREF(below_object);
    PyBuffer_Release(&holder.buffer);
    PyBuffer_Release(&held.buffer);
    return answer;
}

static int
are_rows(const Column *first, const Column *below)
{
    int32_t count = (int32_t)(first->count - 1);
    if (first->count < 1 || first->count > INT32_MAX || first->values[0] != 0 || first->values[count] != below->count) {
        PyErr_SetString(PyExc_ValueError, "these are no rows");
        return 0;
    }
    for (int32_t k = 0; k < count; k++)
        if (first->values[k] > first->values[k + 1]) {
            PyErr_SetString(PyExc_ValueError, "these are no rows");
            return 0;
        }
    return is_below(below, count);
}

/* reached(first, below, starts, past) -> a byte for each object: does a walk from the starts reach it that may not enter
 * `past`, -1 for none? */
static PyObject *
reached(PyObject *module, PyObject *arguments)
{
    (void)module;
    int past;
    Column first = {0}, below = {0}, starts = {0};
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(
            arguments, "O&O&O&i", take_column, &first, take_column, &below, take_column, &starts, &past))
        return NULL;
    if (are_rows(&first, &below) && is_below(&starts, (int32_t)(first.count - 1))) {
        Py_ssize_t count = first.count - 1;
        int32_t *waiting = PyMem_RawMalloc((size_t)(count + 1) * sizeof(int32_t));
        answer = PyByteArray_FromStringAndSize(NULL, count);
        if (waiting == NULL && answer != NULL) {
            Py_CLEAR(answer);
            PyErr_NoMemory();
        }
        if (answer != NULL) {
            char *mask = PyByteArray_AS_STRING(answer);
            int32_t length = 0; /* each object waits once at the most */
            memset(mask, 0, (size_t)count);
            if (past >= 0 && past < count)
                mask[past] = 1;
            for (Py_ssize_t k = 0; k < starts.count; k++)
                if (!mask[starts.values[k]]) {
                    mask[starts.values[k]] = 1;
                    waiting[length++] = starts.values[k];
                }
            while (length > 0) {
                int32_t index = waiting[--length];
                for (int32_t k = first.values[index]; k < first.values[index + 1]; k++)
                    if (!mask[below.values[k]]) {
                        mask[below.values[k]] = 1;
                        waiting[length++] = below.values[k];
                    }
            }
            if (past >= 0 && past < count)
                mask[past] = 0;
        }
        PyMem_RawFree(waiting);
    }
    PyBuffer_Release(&first.buffer);
    PyBuffer_Release(&below.buffer);
    PyBuffer_Release(&starts.buffer);
    return answer;
}

/* breadth_first(first, below, start) -> (objects in the order of the walk, the object before each one; -1 for none) */
static PyObject *
breadth_first(PyObject *module, PyObject *arguments)
{
    (void)module;
    int start;
    Column first = {0}, below = {0};
    PyObject *order_object = NULL, *before_object = NULL, *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "O&O&i", take_column, &first, take_column, &below, &start))
        return NULL;
    if (are_rows(&first, &below)) {
        Py_ssize_t count = first.count - 1;
        int32_t *order = NULL, *before = NULL;
        if (start < 0 || start >= count)
            PyErr_Format(PyExc_ValueError, "there is no object %d among %zd", start, count);
        else if ((order = new_array(count, &order_object)) != NULL)
            before = new_array(count, &before_object);
        if (before != NULL) {
            Py_ssize_t length = 0;
            for (Py_ssize_t k = 0; k < count; k++)
                before[k] = -1;
            order[length++] = start;
            for (Py_ssize_t walked = 0; walked < length; walked++)
                for (int32_t k = first.values[order[walked]]; k < first.values[order[walked] + 1]; k++) {
                    int32_t there = below.values[k];
                    if (before[there] < 0 && there != start) { /* each object is entered once at the most */
                        before[there] = order[walked];
                        order[length++] = there;
                    }
                }
            if (PyByteArray_Resize(order_object, length * (Py_ssize_t)sizeof(int32_t)) == 0)
                answer = PyTuple_Pack(2, order_object, before_object);
        }
    }
    Py_XDECREF(order_object);
    Py_XDECREF(before_object);
    PyBuffer_Release(&first.buffer);
    PyBuffer_Release(&below.buffer);
    return answer;
}

/* The number of each object's strongly connected component (Tarjan 1972). `at` is where each object's row is read on, so
 * that calls need no stack of C's: `calls` is one, of as many objects as there are. */
static void
number_components(
    int32_t count, const int32_t *first, const int32_t *below, int32_t *component, int32_t *number, int32_t *low,
    int32_t *at, int32_t *path, int32_t *calls)
{
    int32_t visited = 0, components = 0, on_path = 0;
    for (int32_t k = 0; k < count; k++) {
        component[k] = -1;
        number[k] = 0;
    }
    for (int32_t start = 0; start < count; start++) {
        if (number[start])
            continue;
        int32_t depth = 0;
        calls[depth++] = path[on_path++] = start;
        number[start] = low[start] = ++visited;
        at[start] = first[start];
        while (depth > 0) {
            int32_t index = calls[depth - 1];
            if (at[index] < first[index + 1]) {
                int32_t there = below[at[index]++];
                if (!number[there]) {
                    calls[depth++] = path[on_path++] = there;
                    number[there] = low[there] = ++visited;
                    at[there] = first[there];
                }
                else if (component[there] < 0 && number[there] < low[index])
                    low[index] = number[there];
                continue;
            }
            depth--;
            if (depth > 0 && low[index] < low[calls[depth - 1]])
                low[calls[depth - 1]] = low[index];
            if (low[index] == number[index]) {
                while (component[index] < 0)
                    component[path[--on_path]] = components;
                components++;
            }
        }
    }
}

/* components(first, below) -> the number of each object's strongly connected component */
static PyObject *
components(PyObject *module, PyObject *arguments)
{
    (void)module;
    Column first = {0}, below = {0};
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "O&O&", take_column, &first, take_column, &below))
        return NULL;
    if (are_rows(&first, &below)) {
        size_t count = (size_t)(first.count - 1);
        int32_t *room = PyMem_RawMalloc((5 * count + 1) * sizeof(int32_t));
        int32_t *component = room == NULL ? NULL : new_array((Py_ssize_t)count, &answer);
        if (room == NULL)
            PyErr_NoMemory();
        else if (component != NULL)
            number_components(
                (int32_t)count, first.values, below.values, component, room, room + count, room + 2 * count,
                room + 3 * count, room + 4 * count);
        PyMem_RawFree(room);
    }
    PyBuffer_Release(&first.buffer);
    PyBuffer_Release(&below.buffer);
    return answer;
}

/* What waits to be walked on from, the nearest first: a heap in which an object may stand more than once. */

typedef struct {
    double far;
    int32_t index;
} Waiting;

static void
put(Waiting *heap, size_t *length, double far, int32_t index)
{
    size_t place = (*length)++;
    while (place > 0 && far < heap[(place - 1) / 2].far) {
        heap[place] = heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    heap[place] = (Waiting){far, index};
}

static Waiting
take_nearest(Waiting *heap, size_t *length)
{
    Waiting nearest = heap[0], moved = heap[--*length];
    size_t place = 0, below = 1;
    while (below < *length) {
        if (below + 1 < *length && heap[below + 1].far < heap[below].far)
            below++;
        if (moved.far <= heap[below].far)
            break;
        heap[place] = heap[below];
        place = below;
        below = 2 * place + 1;
    }
    heap[place] = moved;
    return nearest;
}

/* Dijkstra 1959. `first` and `order` are the rows of references; no cost is negative or NaN. */
static void
walk_by_cost(
    double *cost, const int32_t *first, const int32_t *order, const int32_t *held, const double *weight,
    const Column *starts, const double *start_cost, Waiting *heap)
{
    size_t length = 0;
    for (Py_ssize_t k = 0; k < starts->count; k++)
        if (start_cost[k] < cost[starts->values[k]]) {
            cost[starts->values[k]] = start_cost[k];
            put(heap, &length, start_cost[k], starts->values[k]);
        }
    while (length > 0) {
        Waiting here = take_nearest(heap, &length);
        if (here.far > cost[here.index])
            continue;
        for (int32_t k = first[here.index]; k < first[here.index + 1]; k++) {
            double far = here.far + weight[order[k]];
            int32_t there = held[order[k]];
            if (far < cost[there]) { /* at most once for each reference */
                cost[there] = far;
                put(heap, &length, far, there);
            }
        }
    }
}

/* distances(count, holder, held, weight, starts, start_cost) -> a float64 for each object, infinite where no walk leads */
static PyObject *
distances(PyObject *module, PyObject *arguments)
{
    (void)module;
    int count;
    Column holder = {0}, held = {0}, weight = {0}, starts = {0}, start_cost = {0};
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(
            arguments, "iO&O&O&O&O&", &count, take_column, &holder, take_column, &held, take_costs, &weight,
            take_column, &starts, take_costs, &start_cost))
        return NULL;
    if (count < 0 || holder.count != held.count || holder.count != weight.count || holder.count > INT32_MAX ||
        starts.count != start_cost.count)
        PyErr_SetString(PyExc_ValueError, "the columns have as many references");
    else if (
        is_below(&holder, count) && is_below(&held, count) && is_below(&starts, count) && are_costs(&weight) &&
        are_costs(&start_cost)) {
        size_t references = (size_t)holder.count, objects = (size_t)count;
        int32_t *first = PyMem_RawCalloc(objects + 2, sizeof(int32_t));
        int32_t *order = PyMem_RawMalloc((references + 1) * sizeof(int32_t));
        Waiting *heap = PyMem_RawMalloc((references + (size_t)starts.count + 1) * sizeof(Waiting));
        answer = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(objects * sizeof(double)));
        if (first == NULL || order == NULL || heap == NULL)
            Py_CLEAR(answer);
        if (answer == NULL)
            PyErr_NoMemory();
        else {
            double *cost = (double *)PyByteArray_AS_STRING(answer);
            for (size_t k = 0; k < objects; k++)
                cost[k] = Py_HUGE_VAL;
            for (size_t k = 0; k < references; k++)
                first[holder.values[k] + 2]++;
            for (size_t k = 0; k < objects; k++)
                first[k + 2] += first[k + 1];
            for (size_t k = 0; k < references; k++) /* each row's begin moves to its end, which is the next one's begin */
                order[first[holder.values[k] + 1]++] = (int32_t)k;
            walk_by_cost(cost, first, order, held.values, weight.costs, &starts, start_cost.costs, heap);
        }
        PyMem_RawFree(first);
        PyMem_RawFree(order);
        PyMem_RawFree(heap);
    }
    PyBuffer_Release(&holder.buffer);
    PyBuffer_Release(&held.buffer);
    PyBuffer_Release(&weight.buffer);
    PyBuffer_Release(&starts.buffer);
    PyBuffer_Release(&start_cost.buffer);
    return answer;
}

static PyMethodDef functions[] = {
    {"rows", rows, METH_VARARGS, "rows(count, holder, held) -> (first, below)"},
    {"reached", reached, METH_VARARGS, "reached(first, below, starts, past) -> a byte for each object"},
    {"breadth_first", breadth_first, METH_VARARGS, "breadth_first(first, below, start) -> (order, before)"},
    {"components", components, METH_VARARGS, "components(first, below) -> the number of each object's"},
    {"distances", distances, METH_VARARGS, "distances(count, holder, held, weight, starts, start_cost) -> float64 each"},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_walks", .m_doc = "Walks over graphs.", .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC
PyInit__walks(void)
{
    PyObject *made = PyModule_Create(&module);
#ifdef Py_GIL_DISABLED
    if (made != NULL)
        PyUnstable_Module_SetGIL(made, Py_MOD_GIL_NOT_USED);
#endif
    return made;
}
