module example.com/slidegate/clients/go

go 1.19
