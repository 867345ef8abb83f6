/* Raises an exception at the n-th place where the interpreter lets a signal handler raise.
 *
 * A pending call that asks for itself again runs at every check of the eval breaker, up to 32 times each (CPython 3.11 and
 * 3.12, Python/ceval.c and ceval_gil.c, make_pending_calls).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *kind;
static long left = -1, met;

static int
tick(void *unused)
{
    if (left < 0)
        return 0;
    met++;
    if (left-- == 0) {
        left = -1;
        PyErr_SetNone(kind);
        return -1;
    }
    Py_AddPendingCall(tick, NULL);
    return 0;
}

static PyObject *
arm(PyObject *self, PyObject *args)
{
    PyObject *given;
    long ticks;
    if (!PyArg_ParseTuple(args, "Ol", &given, &ticks))
        return NULL;
    Py_XSETREF(kind, Py_NewRef(given));
    left = ticks;
    met = 0;
    Py_AddPendingCall(tick, NULL);
    Py_RETURN_NONE;
}

static PyObject *
disarm(PyObject *self, PyObject *unused)
{
    left = -1;
    return PyLong_FromLong(met);
}

static PyMethodDef methods[] = {
    {"arm", arm, METH_VARARGS, "arm(kind, ticks): raise this after so many ticks."},
    {"disarm", disarm, METH_NOARGS, "Raise nothing any more; gives the ticks since."},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_interrupts", NULL, -1, methods};

PyMODINIT_FUNC
PyInit__interrupts(void)
{
    return PyModule_Create(&module);
}
