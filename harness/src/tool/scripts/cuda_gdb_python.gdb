# With blocking launches the host thread still stands in the launch: its Python stack is the launch's.
set unwindonsignal on
call (void)_Py_DumpTraceback(2, (void*)PyGILState_GetThisThreadState())
