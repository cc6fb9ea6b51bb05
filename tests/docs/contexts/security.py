from taskbull import App

app = App("page")
